"""A rule as a value, the rule's findings, and the verdict from all findings."""

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
    """An evidence file: name within ``evidence/repeat-<n>/``, and a parser for the bytes."""

    name: str
    #: Raises ValueError where the bytes are not in the form llmb writes.
    parse: Callable[[bytes], E_co]


@dataclass(frozen=True)
class PartFinding:
    """Finding of one rule for one part of the model, based on one number of the part."""

    #: The parameter: canonical name, or the stored name where a parameter map hides the canonical
    #: name.
    part: str
    #: Description of the number: the part's number nearest to the limit, or furthest beyond.
    what: str
    measured: str
    honest: str
    limit: str
    kept: bool
    #: Closeness of the number to the limit; larger is worse, among parts of one rule.
    badness: float


@dataclass(frozen=True)
class Rule:
    """One rule: the protected property, the effect of a failure, and the method, in words.

    The table in docs/rules.md is generated from these texts (``tests/architecture/rules_page.py``).
    """

    id: str
    level: Level
    #: The property that an honest run has.
    title: str
    #: Method of measurement.
    measured: str
    #: Violations that the rule does not detect.
    cannot_see: str
    #: The two most likely honest causes of a failure, the likelier first; or the reason for none.
    causes: tuple[str, ...] = ()
    limit: str = "no difference"
    #: Processes that observe the judge's input, such as "worker, verifier".
    observer: str = "worker"
    #: Files that the judge needs: without the files the rule is not observed.
    evidence: tuple[Evidence[Any], ...] = ()
    #: One of the files is enough.
    any_evidence: bool = False
    #: Modes the rule applies to; other modes have nothing to judge.
    modes: frozenset[str] = EVERY_MODE
    #: First version of the rules with this rule: earlier runs are judged without the rule.
    since: int = 2
    #: Judged once a run, from all repeats together; otherwise the worst repeat counts.
    per_run: bool = False
    #: The judge also gives findings that only flag, besides the finding of ``level``.
    also_flags: bool = False

    def finding(self, status: Status, message: str, **figures: Any) -> Finding:
        """Return a finding with the ``figures`` and files of a ``Finding``."""
        said = {"level": self.level, "observer": self.observer, "basis": "fixed", **figures}
        return Finding(id=self.id, status=status, message=message, **said)

    def unjudged(self, status: Status, why: str, evidence: tuple[str, ...] = ()) -> Finding:
        """Return a finding that the rule was not judged, and the reason."""
        return self.finding(status, why, basis=None, evidence=evidence, observer="none")

    def unobserved(self, why: str, evidence: tuple[str, ...] = ()) -> Finding:
        """Return a finding that the rule could not be observed, and the reason."""
        return self.unjudged(Status.NOT_OBSERVED, why, evidence)


def compared(
    rule: str, kept: bool, message: str, evidence: tuple[str, ...], **figures: str
) -> Finding:
    """Return the finding of a blocking rule, from a comparison of three processes' numbers."""
    status = Status.PASS if kept else Status.FAIL
    who = "worker, calibrator, verifier"
    said: dict[str, Any] = {"basis": "calibrated", "evidence": evidence, **figures}
    return Finding(id=rule, level=Level.BLOCK, status=status, observer=who, message=message, **said)


def not_observed(rule: str, why: str, evidence: tuple[str, ...]) -> Finding:
    """Return a finding that a blocking rule could not be observed, and the reason."""
    status = Status.NOT_OBSERVED
    return Finding(
        id=rule, level=Level.BLOCK, status=status, observer="none", message=why, evidence=evidence
    )


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict of ``findings``: the worst finding counts; no evidence, no pass."""
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
