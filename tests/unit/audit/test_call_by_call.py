"""Limits of the logits of calls: in a rough format they stay below what no logits at all have."""

from __future__ import annotations

import math
import random

import pytest

from llmb.audit.call_by_call import CallByCall
from llmb.audit.distance import Gap
from llmb.audit.equivalence import most_of_part, within_excess
from llmb.audit.ledger import L1
from llmb.records.finding import Finding, Status

CALLS, SEQUENCES = 12, 4


def judged(honest: float, errors: dict[int, float], usual: float) -> Finding:
    """Return L1 of calls that are ``usual`` off, but for those in ``errors``."""
    draw = random.Random(3)
    gaps = {}
    for call in range(CALLS):
        for number in range(SEQUENCES):
            length = draw.uniform(0.9, 1.1)
            error = errors.get(call, usual * draw.uniform(0.9, 1.1))
            gaps[call, f"sequence {number}"] = Gap(error * length, length)
    return CallByCall(gaps, honest, 2.25).finding(L1, ("e",), CALLS)


@pytest.mark.parametrize(
    ("honest", "usual"), [(0.05, 0.07), (0.31, 0.5), (0.49, 0.35), (0.7, 0.95)]
)
def test_two_honest_runs_pass_in_exact_and_in_rough_formats(honest: float, usual: float) -> None:
    assert judged(honest, {}, usual).status is Status.PASS


@pytest.mark.parametrize("honest", [0.31, 0.49, 0.58])
def test_calls_without_logits_fail_however_few_they_are(honest: float) -> None:
    found = judged(honest, {5: 1.0}, 0.3)
    assert found.status is Status.FAIL
    assert "the logits of call 5 are 1 off" in found.message


def test_half_of_the_calls_without_logits_fail_together() -> None:
    found = judged(0.355, dict.fromkeys(range(6), 1.0), 0.3)
    assert "all logits together are 0.7" in found.message


@pytest.mark.parametrize(
    ("honest", "runs", "limit"),
    [(0.05, 1, 1.5), (0.6, 1, math.sqrt(1 + 0.2 / 0.36)), (0.6, 2, 1.5), (1.0, 2, 1.48324)],
)
def test_a_rough_format_leaves_a_fifth_of_the_squared_length(
    honest: float, runs: int, limit: float
) -> None:
    assert within_excess(1.5, honest, runs) == pytest.approx(limit, rel=1e-4)


@pytest.mark.parametrize(
    ("honest", "most"), [(0.01, 0.95), (0.5, 0.95), (0.62, 0.992), (0.9, 1.44)]
)
def test_a_part_of_which_nothing_was_computed_is_beyond_the_limit(
    honest: float, most: float
) -> None:
    assert most_of_part(honest) == pytest.approx(most)
