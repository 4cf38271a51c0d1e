"""Judge of G1 in training: an audited step, unknown to the worker in advance."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.audit import equivalence
from llmb.audit.bench import HONEST, REFERENCE, REPLAY, STEP_VALUES, STEPS, WEIGHTS, Bench
from llmb.audit.rule import Rule
from llmb.records.audited import StepsEvidence
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming

G1 = Rule(
    "G1",
    Level.BLOCK,
    "a timed step does what an audited step does",
    measured="gradients of a step inside the window, unknown to the worker as audited until its "
    "pause; not if L1 compares every step of training",
    limit="as E1",
    cannot_see="a cheat in a random half of the steps, one time in four; parameters with too large "
    "an error even in the honest run of the step (the finding counts these parameters)",
    evidence=(STEPS, STEP_VALUES, REPLAY),
    causes=(
        "a kernel that is chosen anew (autotuned) after the first steps and adds up in a narrower "
        "type",
        "gradients still being reduced or copied on a second stream while the optimizer reads them",
    ),
)
RULES = (G1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield G1 of a training step; the judge ``gradients`` checks the honest run first."""
    if not bench.trains:
        return
    if bench.every_step:
        told = "rule L1 compares the gradients of every step"
        yield G1.unjudged(Status.NOT_APPLICABLE, told)
        return
    steps = bench.needed(STEPS)
    if bench.facts.workload.shapes.get("dropout"):
        yield G1.unjudged(
            Status.NOT_APPLICABLE,
            "dropout draws each step's gradients: E1 and E2 look at a pass without dropout",
        )
        return
    honest, reference = bench.read(HONEST), bench.reference
    kept = next((step for step in steps.steps if step.weights_kept), None)
    if kept is None or honest is None or reference is None or "step" not in reference:
        return
    if bench.measured is None or not is_inside(kept.index, bench.timing):
        return
    weights = bench.read(WEIGHTS)
    yield equivalence.judge_step(
        kept,
        bench.needed(STEP_VALUES),
        honest,
        reference,
        bench.facts.precision,
        _cost(steps, bench.timing),
        weights.padding if weights is not None else (),
        [step.index for step in steps.steps],
        bench.paths(STEP_VALUES, HONEST, REFERENCE),
    )


def is_inside(step: int, timing: RepeatTiming) -> bool:
    """Tell whether ``step`` lies inside the timed window."""
    return timing.warmup_steps <= step < timing.warmup_steps + timing.timed_steps


def _cost(steps: StepsEvidence, timing: RepeatTiming) -> str:
    share = steps.pause_ns / max(1, timing.stop_ns - timing.start_ns)
    return f"all pauses took {share:.2%} of the window's length"
