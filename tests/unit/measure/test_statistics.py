"""Headline numbers against answers worked out by hand, and what the interval is worth."""

from __future__ import annotations

import math
import random

import pytest

from llmb.measure import statistics
from llmb.measure.statistics import StepBlock
from tests.unit.builders_runtime import timing

TOKENS = 100


def test_blocks_are_the_stretches_between_the_fences_of_the_window_alone() -> None:
    given = timing([500, 1500], steps_per_block=10)
    before = given.model_copy(
        update={
            "warmup_steps": 12,
            "timed_steps": 10,
            "start_ns": given.fence_ns[1],
        }
    )
    assert statistics.blocks(given) == (StepBlock(10, 500_000_000), StepBlock(10, 1_500_000_000))
    assert statistics.blocks(before) == (StepBlock(10, 1_500_000_000),)


def test_a_short_last_block_counts_its_own_steps() -> None:
    given = timing([1000, 1000]).model_copy(update={"fence_steps": (2, 12, 17), "timed_steps": 15})
    assert [block.steps for block in statistics.blocks(given)] == [10, 5]


def test_throughput_is_tokens_of_the_window_over_stop_minus_start() -> None:
    # 20 steps of 100 tokens in 0.5 s + 1.5 s.
    assert statistics.tokens_per_second(timing([500, 1500]), TOKENS) == 1000.0


def test_throughput_comes_from_the_supervisors_stamps_and_not_from_the_workers() -> None:
    forged = timing([500, 1500], fence_worker_ns=(0, 1, 2), step_ns=(0,) * 22)
    assert statistics.tokens_per_second(forged, TOKENS) == 1000.0


@pytest.mark.parametrize(
    ("values", "index"),
    [([5.0], 0), ([3.0, 1.0, 2.0], 2), ([4.0, 1.0, 3.0, 2.0], 3), ([2.0, 1.0], 1), ([7, 7, 7], 1)],
)
def test_the_median_is_the_lower_one_where_the_count_is_even(
    values: list[float], index: int
) -> None:
    assert statistics.median_index(values) == index


@pytest.mark.parametrize(
    ("level", "expected"), [(0.0, 1.0), (1.0, 9.0), (0.5, 3.0), (0.25, 2.0), (0.75, 6.0)]
)
def test_a_quantile_lies_on_the_line_between_its_neighbours(level: float, expected: float) -> None:
    assert statistics.quantile([1.0, 3.0, 9.0], level) == pytest.approx(expected)


def test_step_times_are_one_a_step_where_stamps_mean_something() -> None:
    given = timing([100, 300], steps_per_block=2)
    assert statistics.step_times_s(given) == pytest.approx([0.05, 0.05, 0.15, 0.15])


@pytest.mark.parametrize("clock", ["host", "device"])
def test_warm_up_and_tail_steps_are_not_among_the_step_times(clock: str) -> None:
    given = timing([100, 300], steps_per_block=2, warmup_steps=4, step_clock=clock)
    longer = given.model_copy(update={"step_ns": (*given.step_ns, 10**12)})
    assert statistics.step_times_s(longer) == pytest.approx([0.05, 0.05, 0.15, 0.15])


def test_where_python_runs_ahead_step_stamps_are_ignored_and_each_block_gives_its_mean() -> None:
    given = timing([100, 300], steps_per_block=2, step_clock="enqueue")
    nonsense = given.model_copy(update={"step_ns": tuple(range(len(given.step_ns)))})
    assert statistics.step_times_s(nonsense) == pytest.approx([0.05, 0.15])


def test_step_time_statistics_are_exact_for_a_hand_made_window() -> None:
    # Steps of 0.1, 0.1, 0.2, 0.2 and 0.3, 0.3 s: mean 0.2, variance 0.04 / 5.
    found = statistics.step_time(timing([200, 400, 600], steps_per_block=2))
    assert found is not None
    assert found.median == pytest.approx(0.2)
    assert found.p5 == pytest.approx(0.1)
    assert found.p95 == pytest.approx(0.3)
    assert found.cv == pytest.approx(math.sqrt(0.04 / 5) / 0.2)


def test_one_block_of_a_device_that_runs_ahead_has_no_step_statistics() -> None:
    assert statistics.step_time(timing([1000], step_clock="enqueue")) is None
    assert statistics.step_time(timing([1000], step_clock="host")) is not None


def test_one_block_has_no_interval_and_two_have_one() -> None:
    assert statistics.confidence_interval([timing([1000])], TOKENS) is None
    assert statistics.confidence_interval([timing([1000, 1001])], TOKENS) is not None
    assert statistics.confidence_interval([timing([1000]), timing([1001])], TOKENS) is not None


def test_equal_blocks_give_an_interval_of_no_width() -> None:
    low, high = statistics.confidence_interval([timing([1000] * 5)], TOKENS)
    assert low == high == pytest.approx(1000.0)


def test_the_same_stamps_give_the_same_interval_every_time() -> None:
    once, again = (
        statistics.confidence_interval([timing([1000, 1040, 980, 1010, 1005])], TOKENS)
        for _ in range(2)
    )
    assert once == again


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 33, 1024])
def test_what_is_resampled_is_what_randrange_draws(count: int) -> None:
    ours, theirs, items = random.Random(0), random.Random(0), range(count)
    for _ in range(5):
        drawn = statistics._draw_all(items, ours)
        assert drawn == [items[theirs.randrange(count)] for _ in items]


@pytest.mark.parametrize("seed", range(20))
def test_the_headline_is_the_middle_of_the_interval(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "_RESAMPLES", 150)
    draw = random.Random(seed)
    repeats = [
        timing([round(1000 * (1 + draw.gauss(0, 0.05))) for _ in range(draw.randint(2, 8))])
        for _ in range(draw.randint(1, 4))
    ]
    rates = [statistics.tokens_per_second(repeat, TOKENS) for repeat in repeats]
    low, high = statistics.confidence_interval(repeats, TOKENS)
    assert (low + high) / 2 == pytest.approx(rates[statistics.median_index(rates)])
    assert low < high


def test_an_interval_of_noisier_blocks_is_wider() -> None:
    def width(noise: int) -> float:
        blocks = [1000 + noise * step for step in (-2, 1, 0, -1, 2)]
        low, high = statistics.confidence_interval([timing(blocks)], TOKENS)
        return high - low

    assert width(20) > 1.9 * width(10) > 0


def test_differences_between_repeats_widen_the_interval() -> None:
    steady = [timing([1000, 1010, 990])] * 3
    uneven = [timing([base, base + 10, base - 10]) for base in (900, 1000, 1100)]
    widths = []
    for repeats in (steady, uneven):
        low, high = statistics.confidence_interval(repeats, TOKENS)
        widths.append(high - low)
    assert widths[1] > 2 * widths[0]


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (19, 2.0930), (120, 1.9799)],
)
def test_students_t_is_the_tabled_one_or_at_most_a_hundredth_less(
    freedom: int, expected: float
) -> None:
    assert 0.992 * expected < statistics.student_t975(freedom) < expected + 1e-4


def test_the_interval_of_two_blocks_is_the_one_worked_out_by_hand() -> None:
    # Blocks of 1.00 s and 1.02 s: one resample in four is of the first alone, one of the second.
    rates = [1000, 1000 / 1.02, 1000 / 1.01, 1000 / 1.01]
    mean = sum(rates) / 4
    error = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / 4) * math.sqrt(2)
    low, high = statistics.confidence_interval([timing([1000, 1020])], TOKENS)
    assert (low + high) / 2 == pytest.approx(1000 / 1.01)
    assert (high - low) / 2 == pytest.approx(12.7062 * error, rel=0.03)


def test_an_interval_of_very_uneven_blocks_does_not_reach_below_zero() -> None:
    low, high = statistics.confidence_interval([timing([1000, 2000])], TOKENS)
    assert low == 0
    assert high > 1000


def test_with_several_repeats_the_repeat_and_not_the_block_is_what_counts() -> None:
    # Equal blocks within each repeat: more of them say nothing new.
    few, many = (
        statistics.confidence_interval([timing([ms] * n) for ms in (990, 1000, 1010)], TOKENS)
        for n in (2, 8)
    )
    assert many[1] - many[0] == pytest.approx(few[1] - few[0], rel=0.05)


def coverage(blocks: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return how often the interval holds the true rate, in ``runs`` of normal noise."""
    monkeypatch.setattr(statistics, "_RESAMPLES", 150)
    draw = random.Random(1)
    hits = 0
    for _ in range(runs):
        times = [round(1_000_000 * (1 + draw.gauss(0, 0.02))) for _ in range(blocks)]
        low, high = statistics.confidence_interval([timing(times)], TOKENS)
        hits += low <= 1.0 <= high  # 10 steps of 100 tokens in 1,000,000 ms
    return hits / runs


@pytest.mark.parametrize(("blocks", "runs"), [(3, 400), (5, 600), (10, 300)])
def test_the_interval_covers_at_least_93_percent(
    blocks: int, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coverage(blocks, runs, monkeypatch) >= 0.93


# -- steps of several lengths ---------------------------------------------------------------------

#: Two untimed steps of 999 tokens, ten of 10, ten of 30.
SEVERAL = timing([1000, 1000], step_tokens=(999, 999, *[10] * 10, *[30] * 10))


def test_tokens_of_steps_of_several_lengths_are_those_of_the_window() -> None:
    assert statistics.window_tokens(SEVERAL, TOKENS) == 400
    assert statistics.tokens_per_second(SEVERAL, TOKENS) == 200.0
    assert statistics.window_tokens(timing([1000, 1000]), TOKENS) == 20 * TOKENS


def test_blocks_of_several_lengths_spread_the_interval_and_equal_ones_do_not() -> None:
    low, high = statistics.confidence_interval([SEVERAL], TOKENS)
    assert low < 200 < high
    even = timing([1000, 1000], step_tokens=(20,) * 22)
    assert statistics.confidence_interval([even], TOKENS) == (200.0, 200.0)


def test_a_sample_is_a_call_with_its_tokens_and_the_time_after_its_prefill() -> None:
    given = timing([1000, 500], steps_per_block=1, prefill_ns=(7, 7, 200_000_000, 300_000_000))
    first, second = statistics.samples(given, TOKENS, sequences=4)
    assert (first.seconds, first.tokens) == (1.0, 100)
    assert (first.decoded, first.decoding_s) == (96, 0.8)
    assert (second.seconds, second.decoding_s) == (0.5, 0.2)
