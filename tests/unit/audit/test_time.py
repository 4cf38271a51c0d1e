"""Rules T1 and T2 on hand-made stamps, at their limits and beyond."""

from __future__ import annotations

import pytest

from llmb.audit import time
from llmb.records.finding import Level, Status
from llmb.records.run_record import RepeatTiming
from llmb.records.system import SystemDescription
from tests.unit.builders_runtime import host_load, system, timing

#: 5 s on a quiet host, all of whose four cores are the worker's: the clocks may differ by 10 ms.
HONEST = timing([1000] * 5, cpu_s=20.0)
QUIET, BUSY = system(), system(host_load(load_1min=9.0))


def with_worker_clock(off_by_ns: int) -> RepeatTiming:
    worker = (*HONEST.fence_worker_ns[:-1], HONEST.fence_worker_ns[-1] + off_by_ns)
    return HONEST.model_copy(update={"fence_worker_ns": worker})


@pytest.mark.parametrize(
    ("off_by_ms", "host", "rules"),
    [
        *((0, QUIET, "3"), (10, QUIET, "3"), (-10, QUIET, "3")),
        *((35, BUSY, "3"), (-35, BUSY, "3"), (75, QUIET, "2")),
    ],
)
def test_clocks_that_agree_within_what_a_host_explains_pass(
    off_by_ms: int, host: SystemDescription, rules: str
) -> None:
    found = time.judge_clocks([with_worker_clock(off_by_ms * 1_000_000)], host, rules)
    assert (found.id, found.level, found.status) == ("T1", Level.BLOCK, Status.PASS)
    assert found.measured == f"{off_by_ms:+.3f} ms in 5.000 s"


@pytest.mark.parametrize("off_by_ns", [55_000_001, -55_000_001])
def test_a_busy_host_explains_no_more_and_is_named(off_by_ns: int) -> None:
    found = time.judge_clocks([with_worker_clock(off_by_ns)], BUSY)
    assert found.status is Status.FAIL
    assert "load 9.0 on 4 cores before the run" in found.message


@pytest.mark.parametrize("name", ["throttled", "compilations"])
def test_what_the_plugin_tells_of_its_device_moves_no_limit(name: str) -> None:
    told = tuple({name: float(n)} for n in range(len(HONEST.fence_steps)))
    late = with_worker_clock(35_000_000).model_copy(update={"telemetry": told})
    assert time.judge_clocks([late], QUIET).status is Status.FAIL


SHORT = timing([1000], cpu_s=4.0)


@pytest.mark.parametrize(
    ("off_by_ms", "host", "rules", "status"),
    [
        (50, BUSY, "3", Status.PASS),
        (61, BUSY, "3", Status.NOT_OBSERVED),
        (-200, BUSY, "3", Status.NOT_OBSERVED),
        (202, BUSY, "3", Status.FAIL),
        (61, QUIET, "3", Status.FAIL),
        (61, BUSY, "2", Status.FAIL),
    ],
)
def test_in_a_short_window_of_a_busy_host_a_late_stamp_is_no_accusation(
    off_by_ms: int, host: SystemDescription, rules: str, status: Status
) -> None:
    worker = (*SHORT.fence_worker_ns[:-1], SHORT.fence_worker_ns[-1] + off_by_ms * 1_000_000)
    late = SHORT.model_copy(update={"fence_worker_ns": worker})
    assert time.judge_clocks([late], host, rules).status is status
    # A repeat that is only in doubt hides none that fails.
    wrong = with_worker_clock(60_000_000)
    assert time.judge_clocks([wrong, late], host, "3").status is Status.FAIL


@pytest.mark.parametrize("off_by_ns", [10_000_001, -10_000_001, 47_000_000, 10**10])
def test_clocks_that_differ_by_more_fail(off_by_ns: int) -> None:
    found = time.judge_clocks([with_worker_clock(off_by_ns)], QUIET)
    assert found.status is Status.FAIL
    assert found.message == "the two clocks disagree"


def test_one_disagreeing_repeat_fails_and_is_the_one_that_is_shown() -> None:
    found = time.judge_clocks([HONEST, with_worker_clock(80_000_000), HONEST], QUIET)
    assert found.status is Status.FAIL
    assert found.measured == "+80.000 ms in 5.000 s"


def test_two_clocks_that_start_at_different_moments_agree() -> None:
    shifted = tuple(ns + 10**15 for ns in HONEST.fence_worker_ns)
    moved = HONEST.model_copy(update={"fence_worker_ns": shifted})
    assert time.judge_clocks([moved], QUIET).status is Status.PASS


def test_without_a_repeat_no_clock_was_seen_and_nothing_passes() -> None:
    assert time.judge_clocks([], QUIET).status is not Status.PASS


def test_without_a_repeat_no_fence_was_seen_and_nothing_passes() -> None:
    assert time.judge_schedule([]).status is not Status.PASS


def fences(timing_: RepeatTiming):
    return time.judge_schedule([HONEST, timing_])


def test_a_fence_every_ten_steps_passes() -> None:
    found = time.judge_schedule([HONEST, HONEST])
    assert (found.id, found.level, found.status) == ("T2", Level.BLOCK, Status.PASS)
    assert found.measured == "12 fences"


def test_a_fence_before_the_window_is_no_fault() -> None:
    later = HONEST.model_copy(update={"warmup_steps": 12, "timed_steps": 40})
    assert fences(later).status is Status.PASS


def test_a_short_last_block_is_no_fault() -> None:
    short = timing([1000] * 3).model_copy(
        update={"fence_steps": (2, 12, 22, 27), "timed_steps": 25}
    )
    assert fences(short).status is Status.PASS


def odd_window(*steps: int) -> RepeatTiming:
    """Return a window of 25 steps from step 12 on, with fences at ``steps``."""
    stamps = tuple(range(len(steps)))
    given = {"fence_steps": steps, "fence_ns": stamps, "fence_worker_ns": stamps}
    return HONEST.model_copy(update={**given, "warmup_steps": 12, "timed_steps": 25})


def test_the_double_of_an_irregular_stop_is_no_fault() -> None:
    # START might have been at 2, so there is a fence 25 steps after that as well.
    assert fences(odd_window(2, 12, 22, 27, 32, 37)).status is Status.PASS


@pytest.mark.parametrize("extra", [26, 28, 36])
def test_an_irregular_fence_that_is_not_stops_double_fails(extra: int) -> None:
    steps = sorted([2, 12, 22, 32, 37, extra])
    assert fences(odd_window(*steps)).status is Status.FAIL


def without(timing_: RepeatTiming, place: int) -> RepeatTiming:
    cut = {
        name: tuple(v for i, v in enumerate(getattr(timing_, name)) if i != place)
        for name in ("fence_steps", "fence_ns", "fence_worker_ns")
    }
    return timing_.model_copy(update=cut)


@pytest.mark.parametrize("place", range(6))
def test_a_fence_that_is_missing_fails(place: int) -> None:
    found = fences(without(HONEST, place))
    assert found.status is Status.FAIL
    assert "from step 2 to 52 lacks fences" in found.message


@pytest.mark.parametrize(
    "steps",
    [
        (2, 12, 22, 32, 42, 43, 52),
        (2, 12, 12, 22, 32, 42, 52),
    ],
)
def test_a_fence_too_many_fails(steps: tuple[int, ...]) -> None:
    more = tuple(range(7))
    given = {"fence_steps": steps, "fence_ns": more, "fence_worker_ns": more}
    assert fences(HONEST.model_copy(update=given)).status is Status.FAIL


def test_fences_at_other_steps_than_the_tenth_fail() -> None:
    moved = HONEST.model_copy(update={"fence_steps": (2, 12, 23, 32, 42, 52)})
    assert fences(moved).status is Status.FAIL


@pytest.mark.parametrize("stamp", [0, -5, 1_000_000_000])
def test_stamps_that_do_not_rise_fail(stamp: int) -> None:
    stamps = (HONEST.fence_ns[0], HONEST.fence_ns[1], stamp, *HONEST.fence_ns[3:])
    found = fences(HONEST.model_copy(update={"fence_ns": stamps}))
    assert found.status is Status.FAIL
    assert "out of order" in found.message


def fenced(steps: tuple[int, ...]) -> RepeatTiming:
    """Return a window of 5 steps from step 2 on, with fences at ``steps``."""
    stamps = tuple(range(len(steps)))
    given = {"fence_steps": steps, "fence_ns": stamps, "fence_worker_ns": stamps}
    return HONEST.model_copy(update={**given, "timed_steps": 5})


@pytest.mark.parametrize("mode", ["forward", "generate"])
def test_a_call_and_a_sample_have_a_fence_each(mode: str) -> None:
    every = fenced((2, 3, 4, 5, 6, 7))
    assert time.judge_schedule([every], mode).status is Status.PASS
    assert time.judge_schedule([HONEST], mode).status is Status.FAIL
    assert time.judge_schedule([without(every, 3)], mode).status is Status.FAIL
    assert time.judge_schedule([every], "train").status is Status.FAIL


def test_of_two_disagreeing_repeats_the_worse_is_shown() -> None:
    worse, bad = with_worker_clock(-90_000_000), with_worker_clock(80_000_000)
    for repeats in ([worse, bad], [bad, worse]):
        assert time.judge_clocks(repeats, QUIET).measured == "-90.000 ms in 5.000 s"


def test_a_strangers_endless_window_is_refused_without_being_counted_through() -> None:
    endless = HONEST.model_copy(update={"timed_steps": 10**15})
    assert fences(endless).status is Status.FAIL


def test_two_fences_at_one_moment_fail() -> None:
    stamps = (HONEST.fence_ns[0], HONEST.fence_ns[1], HONEST.fence_ns[1], *HONEST.fence_ns[3:])
    assert "out of order" in fences(HONEST.model_copy(update={"fence_ns": stamps})).message


def test_a_bundle_of_rules_2_is_judged_again_in_the_words_of_its_own_record() -> None:
    found = time.judge_clocks([HONEST], QUIET, "2")
    assert found.limit == "0.5 % + 50 ms"
