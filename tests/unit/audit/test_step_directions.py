"""L1 by directions: gradients of a worker's steps beside those of the repeated steps."""

from __future__ import annotations

import math
import random

from llmb.audit.compared_rows import Rows
from llmb.audit.ledger import L1
from llmb.audit.step_directions import DROPPED, ROUNDED, DirectionLimits, StepDirections
from llmb.records.audited import LedgerEvidence, LedgerSegment
from llmb.records.finding import Status

NAMES = [f"layer.{n}.weight" for n in range(20)]
EACH, STEPS, JUDGED = 64, 12, (3, 7)
LEDGER = LedgerEvidence(segments=tuple(LedgerSegment(name=n, elements=EACH) for n in NAMES))
WIDTH = EACH * len(NAMES)


def drawn(seed: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(0, 1) for _ in range(WIDTH)]


MEANS = [drawn(step) for step in range(STEPS)]


def honest(step: int, noise: float = 0.7) -> list[float]:
    """Return a step with masks of its own, which also change the length of its gradient."""
    length = random.Random(step).uniform(0.3, 3)
    return [length * (m + noise * n) for m, n in zip(MEANS[step], drawn(100 + step), strict=True)]


def stream(
    steps: dict[int, list[float]] | None = None,
    noise: float = 0.7,
    limits: DirectionLimits = DROPPED,
    means: list[list[float]] = MEANS,
    *,
    may_overflow: bool = False,
) -> StepDirections:
    changed = steps or {}
    rows = [changed.get(step) or honest(step, noise) for step in range(STEPS)]
    shown, again = ([x for row in one for x in row] for one in (rows, means))
    return StepDirections.of(
        Rows(LEDGER, shown), Rows(LEDGER, again), JUDGED, limits, may_overflow=may_overflow
    )


def faults(steps: dict[int, list[float]]) -> list[str]:
    return [*stream(steps).faults()]


def test_honest_steps_pass_whatever_the_lengths_of_their_gradients() -> None:
    found = stream()
    assert not [*found.faults()]
    assert math.isclose(found.mean, 1 / math.hypot(1, 0.7), abs_tol=0.03)
    assert not [*stream(noise=2.0).faults()]  # as with one short sequence a step
    finding = found.finding(L1, ("e",), STEPS + 2)
    assert finding.status is Status.PASS
    assert finding.message.startswith("12 of 14 steps repeated: the gradients")


def test_a_step_without_gradients_or_with_those_of_another_step_is_named() -> None:
    for gradient in ([0.0] * WIDTH, honest(4), [math.nan] * WIDTH):
        (found, *_) = faults({5: gradient})
        assert "the gradients of step 5 point elsewhere" in found


def test_parameters_without_gradients_show_in_all_steps_together() -> None:
    fewer = {
        step: [0.0 if at < 0.4 * WIDTH else x for at, x in enumerate(honest(step))]
        for step in range(STEPS)
        if step not in JUDGED
    }
    (found,) = faults(fewer)
    assert "all steps point elsewhere" in found


def test_steps_cannot_hide_behind_judged_steps_that_are_nearly_random() -> None:
    noise = {step: honest(step, 50.0) for step in JUDGED}
    found = faults({**noise, 5: [0.0] * WIDTH})
    assert "limit 0.20" in found[0]


def test_a_parameter_that_hangs_on_few_elements_tells_nothing() -> None:
    means = [[0.0 if at % EACH else x for at, x in enumerate(row)] for row in MEANS]
    flat = [x for row in means for x in row]
    assert not StepDirections.of(Rows(LEDGER, flat), Rows(LEDGER, flat), (), DROPPED).cosines


def test_without_dropout_half_of_the_sequences_of_a_step_are_missed() -> None:
    half = {5: [m + n for m, n in zip(MEANS[5], drawn(205), strict=True)]}  # a cosine of 0.7
    assert not [*stream(half, noise=0.1).faults()]
    found, *_ = stream(half, noise=0.1, limits=ROUNDED).faults()
    assert "step 5" in found
    assert not [*stream(noise=0.7, limits=ROUNDED).faults()]  # as in four bits and twelve layers


def test_limits_of_exact_formats_are_narrow() -> None:
    step, mean = ROUNDED
    assert math.isclose(step.limit(1.0), 0.975, abs_tol=0.001)  # FP16 under autocast
    assert math.isclose(step.limit(0.92), 0.80, abs_tol=0.005)  # NVFP4, two layers
    assert step.limit(0.7) == 0.75 * 0.7  # MXFP4, twelve layers
    assert math.isclose(mean.limit(0.97), 0.94, abs_tol=0.005)
    assert mean.limit(1.01) == mean.limit(1.0)  # a cosine is rounded
    assert step.limit(0.0) == DROPPED.of_a_step.limit(0.0) == 0.2


def test_steps_that_overflowed_in_both_processes_are_left_out() -> None:
    over = [math.inf] * WIDTH
    means = [over if step in (0, 1) else row for step, row in enumerate(MEANS)]
    found = stream({0: over, 1: over}, limits=ROUNDED, means=means, may_overflow=True)
    assert not [*found.faults()]
    assert found.overflowed == 2
    assert "2 overflowed, and were left out" in found.finding(L1, ("e",), STEPS).message


def test_one_step_may_overflow_in_one_process_alone() -> None:
    over = [math.inf] * WIDTH
    assert not [*stream({4: over}, may_overflow=True).faults()]
    assert [*stream({4: over, 5: over}, may_overflow=True).faults()]
    assert [*stream({4: over}).faults()]
