"""The search for the best batch size over curves whose best is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from llmb.errors import NotEnoughMemoryError
from llmb.records.run_record import BatchTrial, SearchLog
from llmb.supervision.batch_search import search

Curve = Callable[[int], float | None]


def search_over(curve: Curve) -> tuple[SearchLog, list[int]]:
    """Search ``curve``: tokens per second of a batch size, None where it does not fit."""
    asked: list[int] = []

    def measure(size: int) -> BatchTrial:
        asked.append(size)
        rate = curve(size)
        return BatchTrial(
            batch_size=size,
            status="out_of_memory" if rate is None else "measured",
            tokens_per_second=rate,
            peak_memory_bytes=None,
            message="too big" if rate is None else None,
        )

    return search(measure, 3), asked


def level_off(size: int) -> float:
    return 100 * size / (size + 4)


def wall(size: int) -> float | None:
    return 10.0 * size if size <= 23 else None


def peak(size: int) -> float:
    return 100 - (size - 6) ** 2


def wobble(size: int) -> float | None:
    return {1: 10.0, 2: 9.0}.get(size, 1.0)


CURVES: list[Curve] = [level_off, wall, peak, wobble]


@pytest.mark.parametrize("curve", CURVES)
def test_no_size_is_tried_twice_and_the_log_holds_every_trial_in_order(curve: Curve) -> None:
    log, asked = search_over(curve)
    assert [trial.batch_size for trial in log.trials] == asked
    assert len(set(asked)) == len(asked)
    assert log.timed_steps == 3


@pytest.mark.parametrize("curve", CURVES)
def test_the_best_is_the_fastest_size_tried(curve: Curve) -> None:
    log, _ = search_over(curve)
    rates = {trial.batch_size: trial.tokens_per_second or 0.0 for trial in log.trials}
    assert rates[log.best] == max(rates.values())


def test_the_climb_doubles_from_one_and_ends_where_throughput_levels_off() -> None:
    log, asked = search_over(level_off)
    climb = [n for n in asked if n & (n - 1) == 0]
    assert climb[:3] == [1, 2, 4]
    # 256 against 128 gains 1.5 %, less than the 2 % that a doubling must bring.
    assert max(asked) == 256
    assert log.best >= 128


def test_at_a_wall_of_memory_the_search_closes_in_on_the_largest_size_that_fits() -> None:
    log, asked = search_over(wall)
    assert asked == [1, 2, 4, 8, 16, 32, 24, 20, 22]
    assert log.best == 22


def test_a_peak_between_two_powers_is_found() -> None:
    assert search_over(peak)[0].best == 6


def test_a_curve_that_falls_at_once_ends_at_one() -> None:
    log, asked = search_over(wobble)
    assert log.best == 1
    assert asked == [1, 2]


def test_a_dip_ends_the_climb_and_what_is_reported_was_measured() -> None:
    dip = {1: 10.0, 2: 20.0, 3: 26.0, 4: 15.0, 8: 90.0}
    log, asked = search_over(lambda size: dip.get(size, 1.0))
    assert 8 not in asked
    assert log.best == 3


def test_of_equal_sizes_the_smaller_is_best() -> None:
    assert search_over(lambda size: 50.0)[0].best == 1


def test_only_batch_size_one_fits() -> None:
    log, asked = search_over(lambda size: 5.0 if size == 1 else None)
    assert (log.best, asked) == (1, [1, 2])
    assert log.trials[1].status == "out_of_memory"


def test_where_not_even_one_fits_the_reason_of_the_trial_is_given() -> None:
    with pytest.raises(NotEnoughMemoryError, match="no batch size works: too big"):
        search_over(lambda size: None)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 31, 32, 33, 1000, 4097])
def test_trials_are_few_however_large_the_memory_is(limit: int) -> None:
    log, asked = search_over(lambda size: float(size) if size <= limit else None)
    assert len(asked) <= math.log2(limit) + 2 + 3
    assert limit / 1.35 <= log.best <= limit
    assert all(size <= 2 * limit for size in asked)


@pytest.mark.parametrize(
    ("unit", "most", "expected"),
    [
        (1, 64, [1, 2, 4, 8, 16, 32, 64]),
        (1, 48, [1, 2, 4, 8, 16, 32, 48]),
        (8, 64, [8, 16, 32, 64]),
        (3, 64, [3, 6, 12, 24, 48, 63]),
        (8, 7, [8]),  # the smallest is tried all the same
        (1, 0, [1]),
    ],
)
def test_no_size_above_the_most_is_tried_however_fast_larger_ones_are(
    unit: int, most: int, expected: list[int]
) -> None:
    asked: list[int] = []

    def measure(size: int) -> BatchTrial:
        asked.append(size)
        rate = float(size)
        return BatchTrial(
            batch_size=size, status="measured", tokens_per_second=rate, peak_memory_bytes=None
        )

    log = search(measure, 3, unit, most)
    assert asked[: len(expected)] == expected
    assert max(asked) == log.best == expected[-1]
