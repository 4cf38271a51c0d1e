"""The rules a run is judged by: the law as a table, and how findings add up to a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmb.records.finding import Audit, Finding, Level, Status, Verdict

#: Raised by every change that breaks comparability with earlier runs.
RULES_VERSION = "2"

EVERY_MODE = frozenset({"train", "forward", "generate"})
#: Gradients and an optimizer exist in training only; a generated token has no loss either.
TRAINING = frozenset({"train"})


@dataclass(frozen=True)
class Rule:
    """One rule: what it protects, and what breaking it does."""

    id: str
    level: Level
    title: str
    #: Kinds of steps it applies to; in others there is nothing it could be about.
    modes: frozenset[str] = EVERY_MODE


RULES = (
    Rule("W1", Level.BLOCK, "weights after post-processing are the pristine ones, bit for bit"),
    Rule("E1", Level.BLOCK, "loss, gradients and logits are those of the reference"),
    Rule(
        "E2", Level.BLOCK, "each branch of the model computes what the reference computes", TRAINING
    ),
    Rule("E3", Level.BLOCK, "the model computes from its live weights and its present input"),
    Rule("P1", Level.BLOCK, "effective precision is not below the declared one"),
    Rule("P2", Level.FLAG, "the types seen computing fit the declared precision"),
    Rule("P3", Level.NOTE, "precision settings and accumulator width"),
    Rule("O1", Level.BLOCK, "the optimizer is torch.optim.AdamW as the harness built it", TRAINING),
    Rule("O2", Level.BLOCK, "replayed optimizer steps give the same weights", TRAINING),
    Rule("G1", Level.BLOCK, "a timed step does what an audited step does"),
    Rule("T1", Level.BLOCK, "the clocks of supervisor and worker agree"),
    Rule("T2", Level.BLOCK, "every fence synchronised the device and read results back"),
    Rule("T3", Level.NOTE, "the run was stationary on a quiet host"),
    Rule("K1", Level.BLOCK, "the run is not faster than the device can be"),
    Rule("K2", Level.FLAG, "the loss is finite and starts near ln(vocabulary)", TRAINING),
    Rule("N1", Level.BLOCK, "no callable of torch or llmb was replaced undeclared"),
    Rule("N2", Level.FLAG, "no foreign threads, children, libraries or import hooks"),
    Rule("S1", Level.BLOCK, "the code that ran is the code that is shown"),
)

LIMITS = (
    "Native code in the worker's address space can answer probes honestly and cheat elsewhere.",
    "Drivers and hardware can lie.",
    "A faked kernel clock deceives a supervisor on the same machine.",
    "TF32 and FP16 inputs look alike.",
)


def complete(observed: Iterable[Finding], mode: str = "train") -> Audit:
    """Return the audit of ``observed`` findings in a run of ``mode``.

    A rule without a finding is ``not_observed``, or ``not_applicable`` where it is not about the
    mode.
    """
    findings = list(observed)
    seen = {(finding.id, finding.level) for finding in findings}
    findings += [
        Finding(
            id=rule.id,
            level=rule.level,
            status=Status.NOT_OBSERVED if mode in rule.modes else Status.NOT_APPLICABLE,
            observer="none",
            message=f"not observed: {rule.title}"
            if mode in rule.modes
            else f"there is nothing of the kind in mode {mode}",
        )
        for rule in RULES
        if (rule.id, rule.level) not in seen
    ]
    order = {rule.id: i for i, rule in enumerate(RULES)}
    findings.sort(key=lambda finding: order[finding.id])
    return Audit(
        rules_version=RULES_VERSION,
        verdict=verdict(findings),
        findings=tuple(findings),
        limits=LIMITS,
    )


def compared(
    rule: str,
    kept: bool,
    message: str,
    evidence: tuple[str, ...],
    *,
    measured: str,
    honest: str,
    limit: str,
    basis: str = "calibrated",
) -> Finding:
    """Return the finding of a blocking rule that three processes' numbers were compared for."""
    return Finding(
        id=rule,
        level=Level.BLOCK,
        status=Status.PASS if kept else Status.FAIL,
        observer="worker, calibrator, verifier",
        measured=measured,
        honest=honest,
        limit=limit,
        basis=basis,
        message=message,
        evidence=evidence,
    )


def not_observed(rule: str, why: str, evidence: tuple[str, ...]) -> Finding:
    """Return that a blocking rule could not be observed, and why."""
    return Finding(
        id=rule,
        level=Level.BLOCK,
        status=Status.NOT_OBSERVED,
        observer="none",
        message=why,
        evidence=evidence,
    )


def worst(findings: Sequence[Finding]) -> Finding:
    """Return the worst finding of one rule over all repeats: failed, flagged, not observed."""
    order = (Status.FAIL, Status.FLAG, Status.NOT_OBSERVED)
    return min(findings, key=lambda f: order.index(f.status) if f.status in order else len(order))


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
