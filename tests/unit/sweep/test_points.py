"""In which order points are come to, where memory ends, and which run is the best."""

from __future__ import annotations

import pytest

from llmb.records.finding import Verdict
from llmb.records.run_record import BatchTrial
from llmb.records.sweep_overview import Point, PointState, SweepPlan
from llmb.sweep.points import (
    Boundary,
    best,
    boundary,
    ceiling_tokens_per_second,
    measured_point,
    walk,
)
from tests import builders
from tests.unit.sweep.builders_sweep import plan, record_of


def state(point: Point, status: str, **changes: object) -> PointState:
    measured = measured_point(record_of(point)) if status == "measured" else None
    data = {"precision": point.precision, "batch_size": point.batch_size, "status": status}
    return PointState.model_validate({**data, "measured": measured, **changes})


def walked(made: SweepPlan, **statuses: str) -> list[tuple[str, int | None, str]]:
    """Return every point come to with its status; by default it is measured."""
    found = walk(
        made, lambda p: state(p, statuses.get(f"{p.precision}_{p.batch_size}", "measured"))
    )
    return [(s.precision, s.batch_size, s.status) for s in found]


def test_each_precision_goes_through_its_sizes_before_the_next_begins() -> None:
    found = walked(plan("BF16", "FP32", batch_sizes=(1, 2)))
    assert [each[:2] for each in found] == [("BF16", 1), ("BF16", 2), ("FP32", 1), ("FP32", 2)]


@pytest.mark.parametrize("status", ["out_of_memory", "predicted_out_of_memory"])
def test_above_the_end_of_memory_named_sizes_are_not_tried(status: str) -> None:
    found = walked(plan("BF16", "FP32", batch_sizes=(1, 2, 4, 8)), BF16_2=status)
    assert [s for _, _, s in found] == [
        *("measured", status, "not_tried", "not_tried"),
        *("measured",) * 4,
    ]


def test_what_is_not_tried_says_which_size_was_out_of_memory() -> None:
    found = walk(plan(batch_sizes=(1, 2, 4)), lambda p: state(p, "out_of_memory"))
    assert found[2].message == "not tried: batch size 1 is out of memory"


def test_named_sizes_go_on_after_a_failure_and_doubling_does_not() -> None:
    assert len(walked(plan(batch_sizes=(1, 2, 4)), BF16_2="failed")) == 3
    made = plan("BF16", "FP32", batch_sizes=None, max_batch_size=4)
    assert walked(made, BF16_2="failed") == [
        ("BF16", 1, "measured"),
        ("BF16", 2, "failed"),
        ("FP32", 1, "measured"),
        ("FP32", 2, "measured"),
        ("FP32", 4, "measured"),
    ]


def test_doubling_ends_where_memory_does() -> None:
    found = walked(plan(batch_sizes=None), BF16_8="out_of_memory")
    assert [size for _, size, _ in found] == [1, 2, 4, 8]


def test_memory_ends_at_the_smallest_size_that_did_not_fit() -> None:
    states = [
        state(Point("BF16", 1), "measured"),
        state(Point("BF16", 8), "out_of_memory"),
        state(Point("BF16", 16), "predicted_out_of_memory"),
        state(Point("FP32", 2), "predicted_out_of_memory"),
    ]
    assert boundary(states, "BF16") == Boundary(8, predicted=False)
    assert boundary(states, "FP32") == Boundary(2, predicted=True)
    assert boundary(states, "FP16") is None


def test_the_search_of_a_run_shows_where_memory_ends_too() -> None:
    record = record_of(Point("BF16", None))
    assert (
        BatchTrial(
            batch_size=16, status="out_of_memory", tokens_per_second=None, peak_memory_bytes=None
        )
        in measured_point(record).trials
    )
    auto = state(Point("BF16", None), "measured", measured=measured_point(record))
    assert boundary([auto], "BF16") == Boundary(16, predicted=False)


def rated(point: Point, rate: float, verdict: Verdict = Verdict.UNVERIFIED) -> PointState:
    figures = measured_point(record_of(point)).model_copy(
        update={"tokens_per_second": rate, "verdict": verdict}
    )
    return state(point, "measured", measured=figures, run=f"{point.folder}/run")


def test_the_best_run_is_the_fastest_of_its_precision_that_is_not_invalid() -> None:
    states = [
        rated(Point("BF16", 1), 10.0),
        rated(Point("BF16", 2), 30.0),
        rated(Point("BF16", 4), 99.0, Verdict.INVALID),
        rated(Point("FP32", 1), 5.0),
        state(Point("FP32", 2), "out_of_memory"),
    ]
    assert {p: s.batch_size for p, s in best(states).items()} == {"BF16": 2, "FP32": 1}


def test_the_ceiling_in_tokens_is_what_the_share_of_it_is_of() -> None:
    record = builders.make_record()
    ceiling, result = ceiling_tokens_per_second(record), record.result
    assert ceiling is not None
    assert result.tokens_per_second / ceiling == pytest.approx(result.fraction_of_ceiling)


def test_a_run_without_a_share_of_the_ceiling_has_none_in_tokens_either() -> None:
    def edit(data: dict) -> None:
        data["result"]["fraction_of_ceiling"] = None

    assert ceiling_tokens_per_second(builders.edited(builders.make_record(), edit)) is None
