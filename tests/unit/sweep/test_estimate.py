"""The time a sweep still takes, from what its points took."""

from __future__ import annotations

import pytest

from llmb.records.sweep_overview import Point
from llmb.sweep.estimate import Took, left_s
from tests.unit.sweep.builders_sweep import record_of

BF16 = [Point("BF16", size) for size in (1, 2, 4)]
FP32 = Point("FP32", 1)


def test_nothing_is_estimated_before_something_has_been_measured() -> None:
    assert left_s(BF16, []) is None


def test_steps_grow_with_the_batch_and_all_else_stays() -> None:
    took = [Took(BF16[0], 1, seconds=10.0, stepping_s=4.0)]
    assert left_s(BF16[1:], took) == pytest.approx((6 + 8) + (6 + 16))


def test_the_nearest_size_of_the_same_precision_counts() -> None:
    took = [
        Took(BF16[0], 1, seconds=10.0, stepping_s=4.0),
        Took(BF16[1], 2, seconds=11.0, stepping_s=5.0),
        Took(FP32, 4, seconds=100.0, stepping_s=90.0),
    ]
    assert left_s([BF16[2]], took) == pytest.approx(6 + 10)
    assert left_s([Point("FP16", 2)], took) == pytest.approx(11.0)


def test_a_run_that_searches_takes_what_the_last_one_took() -> None:
    took = [Took(Point("BF16", None), 8, seconds=50.0, stepping_s=9.0)]
    assert left_s([Point("FP32", None)], took) == 50.0


def test_what_a_record_says_of_its_steps_is_within_what_the_point_took() -> None:
    record = record_of(BF16[0])
    windows = sum((r.stop_ns - r.start_ns) / 1e9 for r in record.timing.repeats)
    found = Took.of(BF16[0], record, seconds=1000.0)
    assert found.stepping_s == pytest.approx(windows * 52 / 50)
    assert Took.of(BF16[0], record, seconds=1.0).stepping_s == 1.0
