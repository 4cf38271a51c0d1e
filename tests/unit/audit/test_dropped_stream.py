"""L1 with dropout: directions of a worker's steps beside the steps without dropout."""

from __future__ import annotations

import math
import random

from llmb.audit.compared_rows import Rows
from llmb.audit.dropped_stream import DroppedStream
from llmb.audit.ledger import L1
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


def stream(steps: dict[int, list[float]] | None = None, noise: float = 0.7) -> DroppedStream:
    changed = steps or {}
    rows = [changed.get(step) or honest(step, noise) for step in range(STEPS)]
    shown, again = ([x for row in one for x in row] for one in (rows, MEANS))
    return DroppedStream.of(Rows(LEDGER, shown), Rows(LEDGER, again), JUDGED)


def faults(steps: dict[int, list[float]]) -> list[str]:
    return [*stream(steps).faults()]


def test_honest_steps_pass_whatever_the_lengths_of_their_gradients() -> None:
    found = stream()
    assert not [*found.faults()]
    assert math.isclose(found.mean, 1 / math.hypot(1, 0.7), abs_tol=0.03)
    assert not [*stream(noise=2.0).faults()]  # as with one short sequence a step
    finding = found.finding(L1, ("e",), STEPS + 2)
    assert finding.status is Status.PASS
    assert finding.message.startswith("12 of 14 steps replayed without dropout")


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
    assert not DroppedStream.of(Rows(LEDGER, flat), Rows(LEDGER, flat), ()).cosines
