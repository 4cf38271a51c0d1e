"""The version of llmb that made a record, and a comparison with the model family's code here."""

from __future__ import annotations

from dataclasses import dataclass

from llmb import __version__
from llmb.records import references
from llmb.records.run_record import RunRecord
from llmb.reference import pins


@dataclass(frozen=True)
class Provenance:
    """The reference of a record beside the reference of this llmb."""

    family: str
    #: Version of llmb and digest of the whole reference: of the record, and of this llmb.
    version: str
    digest: str
    version_here: str
    digest_here: str
    #: Why changed code of the family computes the same here, with a reason per change; empty if the
    #: code is the same; None if the family computes otherwise, or if nobody can tell.
    reasons: tuple[str, ...] | None

    @property
    def is_same(self) -> bool:
        """Tell whether this llmb runs the workload of the record."""
        return self.reasons is not None

    def __str__(self) -> str:
        """Return one line: ``made by llmb 0.1.0 (reference 17021ed72954); ...``."""
        made = f"made by llmb {self.version} (reference {self.digest[:12]})"
        here = f"llmb {self.version_here}"
        if (self.version, self.digest) == (self.version_here, self.digest_here):
            return f"{made}, as here"
        if self.digest == self.digest_here:
            return f"{made}; {here} has the same reference"
        how = "the same" if self.is_same else "not the same"
        here = f"{here} ({self.digest_here[:12]})"
        return f"{made}; the {self.family} computation is {how} in {here}"


def provenance(record: RunRecord, digest_here: str | None = None) -> Provenance:
    """Return the version that made ``record``, beside this llmb.

    Args:
        record: a run of any version.
        digest_here: of the reference on disk; None: the pinned digest.
    """
    here = digest_here or pins.reference_digest(pins.pinned_digests())
    family, theirs = record.workload.family, record.reference_digest
    return Provenance(
        family=family,
        version=record.llmb_version,
        digest=theirs,
        version_here=__version__,
        digest_here=here,
        reasons=references.table().reasons(family, theirs, here),
    )


def same_computation(one: RunRecord, other: RunRecord) -> bool:
    """Tell whether two records' families and references compute the same."""
    if one.workload.family != other.workload.family:
        return False
    mine, theirs = one.reference_digest, other.reference_digest
    return references.table().reasons(one.workload.family, mine, theirs) is not None
