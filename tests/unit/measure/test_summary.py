"""The headline of a run from its raw stamps; and each warning exactly when it is due."""

from __future__ import annotations

import re

import pytest

from llmb import clock
from llmb.config import Parallelism
from llmb.measure import summary
from llmb.measure.summary import EnergyMeter
from llmb.plugin.backend import Peak
from llmb.records.run_record import Rank, Result, StepTime, Timing, Topology
from tests.unit.builders_runtime import ceilings, host_load, timing, workload_facts

METER = EnergyMeter("counter", "package")
FACTS = workload_facts(tokens_per_step=100, flops_per_token=1000)


def timing_of(*repeats) -> Timing:
    return summary.timing_of(repeats or [timing()], FACTS.tokens_per_step)


def result_of(timing_: Timing, *, world_size=1, ceiling=None, peak=None, meter=None) -> Result:
    return summary.result_of(timing_, FACTS, world_size, ceiling, peak, meter)


def test_the_headline_is_the_median_repeat_and_every_repeat_is_kept() -> None:
    repeats = [timing([1000] * 2), timing([3000] * 2), timing([2000] * 2)]
    found = timing_of(*repeats)
    assert found.headline_repeat == 2
    assert found.stop_ns == repeats[2].stop_ns
    assert found.repeats == tuple(repeats)
    assert found.clock == clock.NAME


def test_of_two_repeats_the_slower_is_the_headline() -> None:
    assert timing_of(timing([1000]), timing([2000])).headline_repeat == 1


def test_every_rate_follows_from_tokens_and_seconds() -> None:
    found = result_of(timing_of(), world_size=4)  # 50 steps of 100 tokens in 5 s
    assert found.tokens_per_second == 1000.0
    assert found.tokens_per_second_per_device == 250.0
    assert (found.loss_first, found.loss_last) == (10.5, 9.5)
    assert found.peak_memory_bytes == 2**30


def test_without_peak_ceiling_or_meter_nothing_is_claimed() -> None:
    found = result_of(timing_of())
    assert (found.mfu, found.fraction_of_ceiling, found.energy) == (None, None, None)


def test_mfu_is_flops_per_device_over_the_datasheet_peak_and_names_its_source() -> None:
    found = result_of(timing_of(), world_size=2, peak=Peak(flops_per_second=2e6, source="sheet"))
    assert found.mfu is not None
    assert found.mfu.value == pytest.approx(1000 * 1000 / 2 / 2e6)
    assert (found.mfu.peak_flops, found.mfu.peak_source) == (2e6, "sheet")


@pytest.mark.parametrize(("before", "after"), [(2e6, 4e6), (4e6, 2e6)])
def test_the_share_is_of_the_higher_ceiling(before: float, after: float) -> None:
    assert result_of(timing_of(), ceiling=ceilings(before, after)).fraction_of_ceiling == 0.25


def test_energy_is_the_difference_of_the_counter_over_the_window() -> None:
    metered = timing_of(timing(energy_start_j=1000.0, energy_stop_j=1500.0))
    found = result_of(metered, meter=METER).energy
    assert found is not None
    assert (found.joules, found.tokens_per_joule) == (500.0, 10.0)
    assert (found.source, found.scope) == ("counter", "package")


@pytest.mark.parametrize(
    ("start", "stop"), [(1000.0, 10.0), (5.0, 5.0), (None, 5.0), (5.0, None), (None, None)]
)
def test_energy_is_not_measured_when_the_counter_wrapped_stood_still_or_was_missing(
    start: float | None, stop: float | None
) -> None:
    metered = timing_of(timing(energy_start_j=start, energy_stop_j=stop))
    assert result_of(metered, meter=METER).energy is None


def test_energy_without_a_known_source_is_not_reported() -> None:
    metered = timing_of(timing(energy_start_j=0.0, energy_stop_j=9.0))
    assert result_of(metered, meter=None).energy is None


QUIET = host_load(total_cpu_s=1000.0)
LATER = host_load(total_cpu_s=2000.0)


def warnings_of(before=QUIET, after=LATER, cores=4, *, result=None, **changes) -> tuple[str, ...]:
    found = timing_of(timing(**changes))
    return summary.warnings_of(found, result or result_of(found), before, after, cores)


def with_interval(width: float) -> Result:
    quiet = result_of(timing_of())
    return quiet.model_copy(update={"ci95": (1000 - width / 2, 1000 + width / 2)})


def with_cv(cv: float) -> Result:
    quiet = result_of(timing_of())
    return quiet.model_copy(update={"step_time_s": StepTime(median=1, p5=1, p95=1, cv=cv)})


def test_a_quiet_run_carries_no_warning() -> None:
    assert warnings_of() == ()


@pytest.mark.parametrize(
    ("quiet", "noisy", "words"),
    [
        ({"result": with_interval(50)}, {"result": with_interval(51)}, "wide spread: .* 5% "),
        ({"result": with_cv(0.1)}, {"result": with_cv(0.101)}, "uneven steps: .* 10%"),
        (
            {"before": host_load(load_1min=2.0)},
            {"before": host_load(load_1min=2.1)},
            "busy before the run: load 2.1 on 4 cores",
        ),
        (
            {"after": host_load(total_cpu_s=2000.0, steal_s=20.0)},
            {"after": host_load(total_cpu_s=2000.0, steal_s=21.0)},
            "hypervisor gave 2%",
        ),
        ({}, {"after": host_load(throttled_periods=1)}, "CPU quota stopped the run"),
        ({"starved_steps": 0}, {"starved_steps": 3}, "3 steps waited for their seed"),
        (
            {"step_clock": "enqueue", "block_ms": [6000] * 5},
            {"step_clock": "enqueue", "block_ms": [5990] * 5},
            "short window: 29.9 s|short window: 30.0 s",
        ),
        ({"step_clock": "host"}, {"step_clock": "enqueue"}, "short window: 5.0 s"),
    ],
    ids=["interval", "cv", "load", "steal", "throttled", "starved", "window", "window of a CPU"],
)
def test_each_warning_appears_above_its_limit_and_not_at_it(
    quiet: dict, noisy: dict, words: str
) -> None:
    assert warnings_of(**quiet) == ()
    (warning,) = warnings_of(**noisy)
    assert re.search(words, warning), warning


def test_what_the_host_does_not_tell_is_no_reason_to_warn() -> None:
    unknown = host_load(load_1min=None, steal_s=None, throttled_periods=None, frequency_mhz=None)
    assert warnings_of(before=unknown, after=unknown) == ()


@pytest.mark.parametrize("known", ["before", "after"])
def test_a_throttle_count_known_only_once_is_no_reason_to_warn(known: str) -> None:
    loads = {
        "before": host_load(throttled_periods=None),
        "after": host_load(throttled_periods=None),
    }
    loads[known] = host_load(throttled_periods=0)
    assert warnings_of(**loads) == ()


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ((10.0, 1000.0), (60.0, 2000.0), 0.05),
        ((None, 1000.0), (60.0, 2000.0), None),
        ((10.0, 1000.0), (None, 2000.0), None),
        ((10.0, None), (60.0, 2000.0), None),
        ((10.0, 1000.0), (60.0, None), None),
        ((10.0, 1000.0), (60.0, 1000.0), None),
    ],
)
def test_the_stolen_share_is_of_all_cpu_time_between_the_two_readings(
    before: tuple, after: tuple, share: float | None
) -> None:
    first, second = (host_load(steal_s=s, total_cpu_s=t) for s, t in (before, after))
    found = summary.steal_share(first, second)
    assert found == (share and pytest.approx(share))


def telemetry(name: str, *values: float | None) -> tuple[dict[str, float], ...]:
    return tuple({} if value is None else {name: value} for value in values)


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        (telemetry("compilations", 2, 2, 2, 2, 2, 2), None),
        (telemetry("compilations", 2, 2, 3, 3, 3, 5), "3 compilations inside the timed window"),
        (telemetry("compilations", None, None, None, None, None, 1), "1 compilations inside"),
        (telemetry("throttled", 0, 0, 0, 0, 0, 0), None),
        (telemetry("throttled", 0, 1, 0, 0.5, 0, 0), "slowed itself at 2 of 6 fences"),
        (telemetry("power_w", 1, 2, 3, 4, 5, 6), None),
        ((), None),
    ],
)
def test_compilations_and_throttling_inside_the_window_are_warned_of(
    readings: tuple[dict[str, float], ...], words: str | None
) -> None:
    found = warnings_of(telemetry=readings)
    assert [words in warning for warning in found] == ([True] if words else [])


def test_what_happened_before_start_is_no_matter_of_the_window() -> None:
    # START is the second fence: at the first one the compiler was still at work.
    early = timing(warmup_steps=12, telemetry=telemetry("compilations", 1, 4, 4, 4, 4, 4, 4))
    sooner = {"fence_steps": 2, "fence_ns": -(10**9), "fence_worker_ns": -(10**9)}
    longer = {name: (value, *getattr(early, name)) for name, value in sooner.items()}
    found = timing_of(early.model_copy(update=longer))
    assert summary.warnings_of(found, result_of(found), QUIET, LATER, 4) == ()


def test_compilations_and_throttling_are_each_said() -> None:
    both = tuple({"compilations": float(n), "throttled": 1.0} for n in range(6))
    first, second = warnings_of(telemetry=both)
    assert "5 compilations" in first
    assert "--warmup-steps" in first
    assert "6 of 6 fences" in second


def topology_of(*alone_s: float | None) -> Topology:
    ranks = tuple(
        Rank(
            rank=number, host="h", device="x", peak_memory_bytes=None, fence_ns=(), alone_s=seconds
        )
        for number, seconds in enumerate(alone_s)
    )
    mesh = Parallelism(dp_replicate=len(ranks))
    return Topology(
        nodes=1,
        devices_per_node=len(ranks),
        world_size=len(ranks),
        parallelism=mesh,
        ranks=ranks,
    )


def test_the_slowest_rank_is_held_against_the_median_one() -> None:
    found = summary.slowest_rank(topology_of(2.0, 2.0, 3.0, 1.0))
    assert found is not None
    assert (found[0].rank, found[1]) == (2, 1.5)


def test_of_ranks_that_cannot_make_a_step_alone_none_is_called_slow() -> None:
    assert summary.slowest_rank(topology_of(None, None)) is None
    assert summary.slowest_rank(topology_of(1.0)) is None
