"""Repetitions and the verdict REPRODUCED, derived from links between the bundles of a tree.

A bundle never changes. REPRODUCED follows from the bundles of repetitions, computed at every call.
All bundles here have passed ``llmb verify``; this module verifies none.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmb.config import RunConfig
from llmb.records.finding import Reproduction, Verdict, alike
from llmb.records.provenance import same_computation
from llmb.records.run_record import RunRecord
from llmb.reproduction import hardware
from llmb.reproduction.agreement import Agreement, agreement

#: Configuration fields that may differ in a repetition: the seed is drawn anew, the plugin decides
#: on the number of warm-up steps, files have other paths (digests are compared), and a machine may
#: number devices differently, such as ``cuda:3`` for ``cuda:0``.
_ITS_OWN = {"seed", "warmup_steps", "device", "data", "weights"}


@dataclass(frozen=True)
class Member:
    """A verified bundle of a tree, and the keys of the signers."""

    bundle_id: str
    record: RunRecord
    #: Fingerprints of the submitter's listed keys with a valid signature of the manifest.
    signers: frozenset[str] = frozenset()
    #: Id of the submitter, from the manifest; None: the manifest names none.
    submitter: str | None = None
    #: Organisation of the submitter, from the list of owners; None: not listed.
    organisation: str | None = None


@dataclass(frozen=True)
class Repetition:
    """A bundle that repeats an original, and the unmet conditions of REPRODUCED."""

    reproduction: Reproduction
    agreement: Agreement
    #: Unmet conditions about the two runs in sentences.
    shortfalls: tuple[str, ...]
    #: Reason why no second party has repeated the run; None: a second party has.
    same_party: str | None
    #: True if the submitter or the organisation of the original has repeated the run.
    by_same: bool

    @property
    def lacking(self) -> tuple[str, ...]:
        """Unmet conditions in sentences; empty: the original is REPRODUCED."""
        return (*self.shortfalls, *([self.same_party] if self.same_party else []))

    @property
    def counts(self) -> bool:
        """Tell whether every condition of rules.md holds."""
        return not self.lacking


@dataclass(frozen=True)
class Standing:
    """The verdict of a bundle, with all repetitions in the tree."""

    #: The verdict in the record, or REPRODUCED.
    verdict: Verdict
    repetitions: tuple[Repetition, ...] = ()


def standings(members: Iterable[Member]) -> dict[str, Standing]:
    """Return bundle id -> verdict and repetitions.

    Folder and zip of one bundle count as one bundle with the signers of both. A link with a wrong
    run id or wrong figures of the original is no repetition.
    """
    every = _by_id(members)
    found: dict[str, list[Repetition]] = {bundle_id: [] for bundle_id in every}
    for member, original in _linked(every):
        if not list(_false(member.record, original.record)):
            found[original.bundle_id].append(_repetition(member, original))
    return {bundle_id: _standing(every[bundle_id], each) for bundle_id, each in found.items()}


def false_links(members: Iterable[Member]) -> dict[str, str]:
    """Return id of the linking bundle -> reason, for false links only.

    A link to a bundle outside ``members`` cannot be judged.
    """
    every = _by_id(members)
    found = {}
    for member, original in _linked(every):
        faults = list(_false(member.record, original.record))
        if faults:
            found[member.bundle_id] = (
                f"it says that it repeats {original.bundle_id[:12]}, {'; '.join(faults)}"
            )
    return found


def shortfalls(repetition: RunRecord, original: RunRecord) -> tuple[str, ...]:
    """Return the unmet conditions of REPRODUCED in sentences, signatures aside."""
    return tuple(_shortfalls(repetition, original))


def agreement_of(repetition: RunRecord, original: RunRecord) -> Agreement:
    """Return the agreement of the throughputs of two runs."""
    ours, theirs = repetition.result, original.result
    return agreement(ours.tokens_per_second, ours.ci95, theirs.tokens_per_second, theirs.ci95)


def same_party(member: Member, original: Member) -> str | None:
    """Return why two bundles are not of different parties; None: they are.

    A party is an organisation of the list of owners. A submitter with two keys is one party.
    """
    if _is_same(member, original):
        return f"both are handed in by {original.organisation or original.submitter}"
    if not original.signers:
        return "the original has no valid signature by a listed key"
    if not member.signers:
        return "the repetition has no valid signature by a listed key"
    if member.signers & original.signers:
        return "both are signed with the same key"
    return None


def _is_same(one: Member, other: Member) -> bool:
    pairs = ((one.submitter, other.submitter), (one.organisation, other.organisation))
    return any(a is not None and b is not None and _spelt(a) == _spelt(b) for a, b in pairs)


def _spelt(name: str) -> str:
    """Return the letters and digits of ``name``, without case: of "ACME, Inc." ``acmeinc``."""
    plain = unicodedata.normalize("NFKC", name).casefold()
    return "".join(letter for letter in plain if letter.isalnum()) or name


def _by_id(members: Iterable[Member]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    for member in members:
        copy = found.get(member.bundle_id)
        signers = member.signers | (copy.signers if copy else frozenset())
        found[member.bundle_id] = replace(member, signers=signers)
    return found


def _linked(every: Mapping[str, Member]) -> Iterator[tuple[Member, Member]]:
    """Yield (repetition, original) for every link between two bundles of ``every``."""
    for member in every.values():
        link = member.record.reproduction_of
        if link is not None and link.bundle_id in every and link.bundle_id != member.bundle_id:
            yield member, every[link.bundle_id]


def _false(record: RunRecord, original: RunRecord) -> Iterator[str]:
    link = record.reproduction_of
    assert link is not None
    stated = (link.run_id, link.tokens_per_second, link.ci95)
    result = original.result
    if stated != (original.run_id, result.tokens_per_second, result.ci95):
        yield (
            f"as run {link.run_id[:8]} with {link.tokens_per_second:,.2f} tokens/s; that is run "
            f"{original.run_id[:8]} with {result.tokens_per_second:,.2f}"
        )


def _repetition(member: Member, original: Member) -> Repetition:
    agrees = agreement_of(member.record, original.record)
    return Repetition(
        reproduction=Reproduction(
            bundle_id=member.bundle_id,
            run_id=member.record.run_id,
            tokens_per_second=member.record.result.tokens_per_second,
            difference_percent=agrees.difference_percent,
        ),
        agreement=agrees,
        shortfalls=shortfalls(member.record, original.record),
        same_party=same_party(member, original),
        by_same=_is_same(member, original),
    )


def _standing(member: Member, repetitions: Sequence[Repetition]) -> Standing:
    verdict = member.record.audit.verdict
    if any(repetition.counts for repetition in repetitions):
        verdict = Verdict.REPRODUCED
    ordered = sorted(repetitions, key=lambda each: each.reproduction.bundle_id)
    return Standing(verdict, tuple(ordered))


def _shortfalls(ours: RunRecord, theirs: RunRecord) -> Iterator[str]:
    for name, record in (("original", theirs), ("repetition", ours)):
        if record.audit.verdict is not Verdict.CONSISTENT:
            yield f"the {name} is {record.audit.verdict.value}, not CONSISTENT"
        if record.class_ != "official":
            yield f"the {name} is a {record.class_} run"
    yield from _other_work(ours, theirs)
    unlike = hardware.unlike(hardware.of_record(theirs), hardware.of_record(ours))
    if unlike:
        yield f"another class of hardware: {'; '.join(unlike)}"
    agrees = agreement_of(ours, theirs)
    if not agrees.is_within_limit:
        yield f"the throughput differs by {agrees.difference_percent:+.2f} %, more than 5"


def _other_work(ours: RunRecord, theirs: RunRecord) -> Iterator[str]:
    if ours.run_id == theirs.run_id:
        yield "it is the same run"
    # ``llmb verify`` checks the tokens in the evidence against the seed. A copy of the original
    # with a new run id therefore still has the original's seed. Fully forged evidence is not
    # detected.
    if ours.config.seed == theirs.config.seed:
        yield "it has the seed of the original, and may be a copy of it"
    if not alike(ours.rules_version, theirs.rules_version):
        yield f"other rules: {theirs.rules_version}, {ours.rules_version}"
    if ours.workload != theirs.workload:
        yield "another workload"
    elif not same_computation(ours, theirs):
        versions = f"llmb {theirs.llmb_version}, llmb {ours.llmb_version}"
        yield f"another computation of family {ours.workload.family}: {versions}"
    other = [*_other_configuration(ours.config, theirs.config)]
    if other:
        yield f"another configuration: {', '.join(other)}"
    if ours.precision.effective != theirs.precision.effective:
        yield (
            f"another effective precision: {theirs.precision.effective}, {ours.precision.effective}"
        )
    # REPRODUCED is a verdict on a bundle, and a bundle contains the code of the plugin.
    if {f.path: f.sha256 for f in ours.plugin.files} != {
        f.path: f.sha256 for f in theirs.plugin.files
    }:
        yield "other files of the plugin"


def _other_configuration(ours: RunConfig, theirs: RunConfig) -> Iterator[str]:
    for name in RunConfig.model_fields:
        if name not in _ITS_OWN and getattr(ours, name) != getattr(theirs, name):
            yield name
    if ours.device.partition(":")[0] != theirs.device.partition(":")[0]:
        yield "device"
    for name in ("data", "weights"):
        sources = (getattr(ours, name), getattr(theirs, name))
        if len({source and source.sha256 for source in sources}) > 1:
            yield name
