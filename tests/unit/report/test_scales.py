"""The words of the audit as scales: of every committed bundle, and of findings that accuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from llmb.records.bundle import read_record
from llmb.records.finding import Finding, Level, Status
from llmb.report.scales import Scale, scales

SUBMISSIONS = Path(__file__).parents[3] / "submissions"
RECORDS = sorted(SUBMISSIONS.glob("**/record.json"))


def finding(id_: str, status: Status = Status.FAIL, message: str = "", **words: Any) -> Finding:
    return Finding(
        id=id_, level=Level.BLOCK, status=status, observer="worker", message=message, **words
    )


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_rules_with_numbers_have_scales_in_every_committed_bundle(path: Path) -> None:
    """A judge that words its numbers otherwise fails here: ``llmb.report.scales`` reads words."""
    findings = read_record(path.parent).audit.findings
    numbered = [f for f in findings if f.id in ("E1", "E2", "E3", "P1", "L1", "T1", "K1", "K2")]
    observed = [f for f in numbered if f.status is Status.PASS]
    assert len(observed) >= 6
    for one in observed:
        found = scales(one)
        assert found, f"{one.id}: {one.measured}"
        assert all(scale.is_kept for scale in found)


CHEAT = (
    (
        finding(
            "E1",
            measured="0.0306 of all, worst 0.0794",
            honest="0.00516 of all, worst 0.00861",
            limit="1.5 and 2.0 times honest",
        ),
        [(0.0306, 0.00774), (0.0794, 0.01722)],
    ),
    (
        finding(
            "L1",
            message="all gradients together are 0.0441 off (limit 0.02), furthest a; b is 9 off",
            measured="0.0447 of all, worst 0.0551, in one step 0.0853, element by element 0.06; "
            "exp_avg 0.01 of all, worst 0.02, in one step 0.03; the honest run's own 9 of all, "
            "worst 9, in one step 9",
            honest="0.00516 of all, 0.006 in the median",
            limit="3 times honest (moments: 4.5), 0.4 in one step",
        ),
        [(0.0447, 0.02), (0.0853, 0.4), (0.01, 4.5 * 0.00516)],
    ),
)


@pytest.mark.parametrize(("accused", "expected"), CHEAT, ids=lambda one: getattr(one, "id", ""))
def test_errors_are_held_to_times_of_the_honest_error(
    accused: Finding, expected: list[tuple[float, float]]
) -> None:
    found = [(scale.measured[0], scale.high) for scale in scales(accused)]
    assert found == [(value, pytest.approx(limit)) for value, limit in expected]
    assert not scales(accused)[0].is_kept


def test_directions_are_held_to_those_of_judged_steps() -> None:
    accused = finding(
        "L1",
        measured="cosine 0.64 in the mean, 0.01 in step 45",
        honest="0.63 in judged steps",
        limit="0.47 in the mean, 0.32 in each step",
    )
    mean, worst = scales(accused)
    assert (mean.low, worst.low) == (0.47, 0.32)
    assert mean.is_kept
    assert not worst.is_kept


def test_fewer_bits_than_the_limit_are_beyond_it() -> None:
    accused = finding(
        "P1",
        measured="forward 4.271 bits, gradients 6.9",
        honest="forward 6.829 bits, gradients 6.883",
        limit="BF16: 6.08, 6.13; FP8: 2.75, 2.45",
    )
    forward, gradients = scales(accused)
    assert (forward.low, forward.is_kept, gradients.is_kept) == (6.08, False, True)
    places = {area.style: area.x for area in forward.drawing().areas}
    limit = next(one for one in forward.drawing().strokes if one.style == "mark-limit")
    honest = next(one for one in forward.drawing().strokes if one.style == "mark-honest")
    assert places["mark-broken"] < limit.x1 < honest.x1
    assert "limit 6.08 bits" in forward.drawing().name


def test_a_rule_that_was_kept_has_no_scale_that_says_otherwise() -> None:
    words = {"measured": "9 of all, worst 9", "honest": "1 of all, worst 1"}
    kept = finding("E1", Status.PASS, limit="1.5 and 2.0 times honest", **words)
    assert scales(kept) == ()


@pytest.mark.parametrize(
    "words",
    [
        {"measured": None, "limit": "1.5 bits"},
        {"measured": "6.5 bits", "honest": "6.5 bits", "limit": "<script>"},
        {"measured": "1e999 bits", "honest": "6.5 bits", "limit": "1e999 bits"},
        {"measured": "six bits", "honest": "6.5 bits", "limit": "6 bits"},
        {"measured": "9" * 5000 + " bits", "honest": "9" * 5000 + " bits", "limit": "0 bits"},
    ],
)
def test_words_of_another_form_have_no_scale(words: dict[str, str]) -> None:
    assert scales(finding("E2", **words)) == ()
    assert scales(finding("no such rule", **words)) == ()


def test_what_is_far_beyond_the_limit_is_drawn_at_the_end_and_says_so() -> None:
    far = Scale("x", "bits", (-900.0, -900.0), (7.0, 7.0), 6.0, None)
    assert far.is_clipped
    mark = next(area for area in far.drawing().areas if area.style == "mark-broken")
    assert mark.x == 0
    assert not Scale("x", "bits", (5.0, 5.0), (7.0, 7.0), 6.0, None).is_clipped


def test_a_number_that_is_none_is_beyond_every_limit() -> None:
    broken = Scale("x", "", (math.nan, math.nan), (1.0, 1.0), None, 2.0)
    assert not broken.is_kept
    mark = next(area for area in broken.drawing().areas if area.style == "mark-broken")
    assert mark.x > 90


def test_limits_on_both_sides_leave_the_middle_to_honest_runs() -> None:
    both = Scale("clock", "ms", (-60.0, -60.0), (0.0, 0.0), -50.0, 50.0)
    areas = [area for area in both.drawing().areas if area.style.startswith("zone")]
    assert [area.style for area in areas] == ["zone-honest", "zone-cheat", "zone-cheat"]
    assert sum(area.width for area in areas) == pytest.approx(100, abs=0.01)
    assert not both.is_kept
