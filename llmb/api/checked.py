"""A verified bundle, as ``llmb.verify`` returns it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmb.api.result import RunResult
from llmb.errors import BundleRefusedError
from llmb.records.printable import printable
from llmb.submission.elsewhere import places
from llmb.submission.verify import VerifyCheck
from llmb.submission.verify import verify as verify_path

if TYPE_CHECKING:
    from llmb.api.options import PathText

_READABLE = "readable"


@dataclass(frozen=True, repr=False)
class BundleCheck:
    """Every check of a bundle, such as files, digests, derived numbers, findings and verdict."""

    #: The bundle.

    path: Path
    #: Name, outcome and message of each check.
    checks: tuple[VerifyCheck, ...]
    #: The run of the bundle; None if the bundle is too damaged to be read.
    result: RunResult | None
    #: sha256 of the manifest, in hex; None if the bundle is too damaged to be read.
    bundle_id: str | None

    @property
    def ok(self) -> bool:
        """Whether every check passed, so that the numbers follow from the evidence."""
        return all(check.ok for check in self.checks)

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each failed check; empty for a good bundle."""
        failed = (check for check in self.checks if not check.ok)
        return tuple(printable(f"{check.name}: {check.message}") for check in failed)

    def __repr__(self) -> str:
        count, path = len(self.checks), printable(str(self.path))
        if self.ok:
            return f"<llmb bundle: OK, {count} checks, {path}>"
        return f"<llmb bundle: REFUSED, {'; '.join(self.problems)}, {path}>"

    def _repr_html_(self) -> str:
        """Return the checks as notebooks show them."""
        from llmb.report.card import bundle_card

        return bundle_card(self.checks, ok=self.ok)


def verify(
    bundle: PathText,
    *,
    evidence: Sequence[str] = (),
    signers: PathText | None = None,
    authorities: PathText | None = None,
) -> BundleCheck:
    """Return every check of a bundle, without executing or unpacking a file of the bundle.

    A refused bundle is no error: ``ok`` is False, and ``problems`` says why.

    Args:
        bundle: a folder or a zip.
        evidence: folders or http(s) addresses with large evidence outside of the bundle.
        signers: a file of allowed signers (ssh); an allowed signer must have signed.
        authorities: a file of certificates (PEM); time stamps must come from these authorities.

    Raises:
        UsageError: nothing is readable at ``bundle`` or ``signers``.
        EvidenceNotHereError: evidence lies elsewhere, so there is no verdict on the bundle.
        UnavailableError: a program or package for ``signers`` or ``authorities`` is missing.

    Example:
        >>> llmb.verify("bundle.zip").ok  # doctest: +SKIP
        True
    """
    path, there = Path(os.path.abspath(bundle)), places(tuple(evidence))
    files = [None if one is None else Path(one) for one in (signers, authorities)]
    try:
        found = verify_path(path, files[0], there.take if there else None, files[1])
    except BundleRefusedError as error:
        return BundleCheck(
            path, (VerifyCheck(_READABLE, ok=False, message=str(error)),), None, None
        )
    return BundleCheck(path, found.checks, RunResult(found.record, path), found.bundle_id)
