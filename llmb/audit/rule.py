"""A rule as a value, its findings, and how findings add up to a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmb.config import Mode
from llmb.records.finding import Finding, Level, Status, Verdict

E_co = TypeVar("E_co", covariant=True)

EVERY_MODE = frozenset(mode.value for mode in Mode)
#: Gradients and an optimizer exist in training only; a generated token has no loss either.
TRAINING = frozenset({Mode.TRAIN.value})


@dataclass(frozen=True)
class Evidence(Generic[E_co]):
    """An evidence file: its name within ``evidence/repeat-<n>/``, and how its bytes are read."""

    name: str
    #: Raises ValueError where the bytes are not what llmb writes.
    parse: Callable[[bytes], E_co]


@dataclass(frozen=True)
class PartFinding:
    """What one rule says of one part of the model, from one of the part's numbers."""

    #: The parameter: its canonical name, or where a map hides it the name it is stored under.
    part: str
    #: Which number of the part it is, in words: the one nearest to its limit, or furthest beyond.
    what: str
    measured: str
    honest: str
    limit: str
    kept: bool
    #: How near the number is to its limit; the larger, the worse, of parts of one rule.
    badness: float


@dataclass(frozen=True)
class Rule:
    """One rule: what it protects, what breaking it does, and how it is judged, in words.

    The table in docs/rules.md is made of these texts (``tests/architecture/rules_page.py``).
    """

    id: str
    level: Level
    #: What is so in an honest run.
    title: str
    #: How the rule is measured, and which values an honest run stays within.
    measured: str
    #: What breaks the rule and is not noticed.
    cannot_see: str
    #: The two most likely honest causes of a failure, the likelier first; or why there is none.
    causes: tuple[str, ...] = ()
    limit: str = "no difference"
    #: Which processes see what the judge is told.
    observer: str = "worker"
    #: Files that the judge needs: without them the rule is not observed.
    evidence: tuple[Evidence[Any], ...] = ()
    #: One of the files is enough.
    any_evidence: bool = False
    #: Kinds of steps it applies to; in others there is nothing it could be about.
    modes: frozenset[str] = EVERY_MODE
    #: The version of the rules that it came with: earlier runs are judged without it.
    since: int = 2
    #: Judged once a run, from all repeats together; otherwise the worst repeat counts.
    per_run: bool = False
    #: The judge also gives findings that only flag, beside that of ``level``.
    also_flags: bool = False

    def finding(self, status: Status, message: str, **figures: Any) -> Finding:
        """Return what was found, with the ``figures`` and files of a ``Finding``."""
        said = {"level": self.level, "observer": self.observer, "basis": "fixed", **figures}
        return Finding(id=self.id, status=status, message=message, **said)

    def unjudged(self, status: Status, why: str, evidence: tuple[str, ...] = ()) -> Finding:
        """Return that the rule was not judged, and why."""
        return self.finding(status, why, basis=None, evidence=evidence, observer="none")


def compared(
    rule: str, kept: bool, message: str, evidence: tuple[str, ...], **figures: str
) -> Finding:
    """Return the finding of a blocking rule that three processes' numbers were compared for."""
    status = Status.PASS if kept else Status.FAIL
    who = "worker, calibrator, verifier"
    said: dict[str, Any] = {"basis": "calibrated", "evidence": evidence, **figures}
    return Finding(id=rule, level=Level.BLOCK, status=status, observer=who, message=message, **said)


def not_observed(rule: str, why: str, evidence: tuple[str, ...]) -> Finding:
    """Return that a blocking rule could not be observed, and why."""
    status = Status.NOT_OBSERVED
    return Finding(
        id=rule, level=Level.BLOCK, status=status, observer="none", message=why, evidence=evidence
    )


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Return what ``findings`` add up to: the worst of them, and never a silent pass."""
    every = list(findings)
    blocking = {f.status for f in every if f.level is Level.BLOCK}
    statuses = {f.status for f in every}
    if Status.FAIL in blocking:
        return Verdict.INVALID
    if Status.NOT_OBSERVED in blocking or not blocking:
        return Verdict.UNVERIFIED
    if Status.FLAG in statuses or Status.FAIL in statuses:
        return Verdict.FLAGGED
    return Verdict.CONSISTENT
