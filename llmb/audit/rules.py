"""The judges of a run, the rules of all judges, and the audit built from findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from llmb.audit import (
    gradients,
    ledger,
    loss,
    namespace,
    optimizer,
    outputs,
    pace,
    physics,
    replay,
    settings,
    sources,
    surroundings,
    time,
    timed_step,
    types,
    weights,
)
from llmb.audit.bench import Bench
from llmb.audit.rule import Rule, verdict
from llmb.records.finding import RULES_VERSION, Audit, Finding, Status


class Judge(Protocol):
    """A judge: a module with rules, and a function that yields findings for the rules."""

    @property
    def RULES(self) -> tuple[Rule, ...]:  # noqa: N802
        """Return the rules; a rule may have two judges."""

    def judge(self, bench: Bench) -> Iterable[Finding]:
        """Yield a finding for each rule with evidence."""


#: All judges, in the order of the table. ``timed_step`` and ``outputs`` use results of
#: ``gradients``; ``ledger`` uses results of all three.
JUDGES: tuple[Judge, ...] = (
    weights,
    gradients,
    types,
    settings,
    optimizer,
    replay,
    timed_step,
    outputs,
    ledger,
    time,
    pace,
    physics,
    loss,
    namespace,
    surroundings,
    sources,
)


def declared(judges: Iterable[Judge], version: str = RULES_VERSION) -> tuple[Rule, ...]:
    """Return the rules of ``judges`` in ``version`` of the rules, each rule once."""
    every = dict.fromkeys(rule for judge in judges for rule in judge.RULES)
    return tuple(rule for rule in every if rule.since <= int(version))


RULES = declared(JUDGES)

LIMITS = (
    "Native code in the worker's address space can answer probes honestly and cheat elsewhere.",
    "Drivers and hardware can lie.",
    "A faked kernel clock deceives a supervisor on the same machine.",
    "TF32 and FP16 inputs look alike.",
)


def complete(
    observed: Iterable[Finding],
    mode: str = "train",
    judges: Iterable[Judge] = JUDGES,
    version: str = RULES_VERSION,
) -> Audit:
    """Return the audit from the findings in ``observed``, in a run of ``mode``.

    A rule without a finding is ``not_observed``, or ``not_applicable`` where the rule does not
    apply to the mode.
    """
    findings, rules = list(observed), declared(judges, version)
    seen = {(finding.id, finding.level) for finding in findings}
    findings += [
        rule.unobserved(f"not observed: {rule.title}")
        if mode in rule.modes
        else rule.unjudged(Status.NOT_APPLICABLE, f"there is nothing of the kind in mode {mode}")
        for rule in rules
        if (rule.id, rule.level) not in seen
    ]
    order = {rule.id: i for i, rule in enumerate(rules)}
    findings.sort(key=lambda finding: order[finding.id])
    return Audit(
        rules_version=version,
        verdict=verdict(findings),
        findings=tuple(findings),
        limits=LIMITS,
    )


def worst(findings: Sequence[Finding]) -> Finding:
    """Return the worst finding of one rule over all repeats: failed, flagged, not observed."""
    order = (Status.FAIL, Status.FLAG, Status.NOT_OBSERVED)
    return min(findings, key=lambda f: order.index(f.status) if f.status in order else len(order))
