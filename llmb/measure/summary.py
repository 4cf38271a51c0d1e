"""The headline of a run: timing of the repeats -> result, and warnings for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from llmb import clock
from llmb.measure import statistics
from llmb.plugin.backend import Peak
from llmb.records.ceiling import Ceilings
from llmb.records.run_record import (
    Energy,
    Mfu,
    Rank,
    RepeatTiming,
    Result,
    Timing,
    Topology,
    WorkloadFacts,
)
from llmb.records.system import HostLoad

_WIDE_INTERVAL = 0.05  # of the headline
_WIDE_SPREAD_CV = 0.10
_SHORT_WINDOW_S = 30.0
_STEAL_SHARE = 0.02


@dataclass(frozen=True)
class EnergyMeter:
    """The source of a run's joules, such as a counter of the device."""

    source: Literal["counter", "sampled", "estimated"]
    scope: Literal["device", "package", "node"]


def timing_of(repeats: Sequence[RepeatTiming], tokens_per_step: int) -> Timing:
    """Return the timing of the median repeat, with the timing of all repeats included."""
    rates = [statistics.tokens_per_second(repeat, tokens_per_step) for repeat in repeats]
    headline = statistics.median_index(rates)
    return Timing(
        clock=clock.NAME,
        headline_repeat=headline,
        repeats=tuple(repeats),
        **repeats[headline].model_dump(),
    )


def result_of(
    timing: Timing,
    workload: WorkloadFacts,
    world_size: int,
    ceilings: Ceilings | None,
    peak: Peak | None,
    meter: EnergyMeter | None,
) -> Result:
    """Return every headline number; numbers not measured are None.

    MFU and the fraction of the ceiling are None, too, if sequences differ in length and work.
    """
    rate = statistics.tokens_per_second(timing, workload.tokens_per_step)
    flops_per_second = rate * workload.flops_per_token / world_size
    mfu = None
    if peak is not None and not timing.step_tokens:
        mfu = Mfu(
            value=flops_per_second / peak.flops_per_second,
            peak_flops=peak.flops_per_second,
            peak_source=peak.source,
        )
    return Result(
        tokens_per_second=rate,
        ci95=statistics.confidence_interval(timing.repeats, workload.tokens_per_step),
        tokens_per_second_per_device=rate / world_size,
        step_time_s=statistics.step_time(timing),
        mfu=mfu,
        fraction_of_ceiling=fraction_of_ceiling(timing, workload, world_size, ceilings),
        peak_memory_bytes=timing.peak_memory_bytes,
        energy=_energy(timing, statistics.window_tokens(timing, workload.tokens_per_step), meter),
        loss_first=timing.loss_first,
        loss_last=timing.loss_last,
    )


def fraction_of_ceiling(
    timing: Timing, workload: WorkloadFacts, world_size: int, ceilings: Ceilings | None
) -> float | None:
    """Return a device's FLOP/s over the ceiling's; None without a ceiling, or with mixed lengths.

    Example: 0.37.
    """
    if ceilings is None or timing.step_tokens:
        return None
    rate = statistics.tokens_per_second(timing, workload.tokens_per_step)
    attainable = max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
    return rate * workload.flops_per_token / world_size / attainable


def _energy(timing: Timing, tokens: int, meter: EnergyMeter | None) -> Energy | None:
    start, stop = timing.energy_start_j, timing.energy_stop_j
    if meter is None or start is None or stop is None or stop <= start:  # no meter, or wrapped
        return None
    joules = stop - start
    return Energy(
        joules=joules, tokens_per_joule=tokens / joules, source=meter.source, scope=meter.scope
    )


def steal_share(before: HostLoad, after: HostLoad) -> float | None:
    """Return the share of CPU time that the hypervisor gave to other guests between two readings.

    Example: 2 s of steal in 100 CPU seconds is 0.02.
    """
    if before.steal_s is None or after.steal_s is None:
        return None
    if before.total_cpu_s is None or after.total_cpu_s is None:
        return None
    total = after.total_cpu_s - before.total_cpu_s
    return (after.steal_s - before.steal_s) / total if total > 0 else None


def slowest_rank(topology: Topology) -> tuple[Rank, float] | None:
    """Return the rank slowest in a step alone, and that rank's time over the median rank's time.

    A common step cannot show the slowest rank, because all ranks wait. None if ranks share
    parameters: a rank then cannot make a step alone. Example: times 1.0, 1.0 and 1.3 s give the
    third rank and 1.3.
    """
    timed = [(rank.alone_s, rank) for rank in topology.ranks if rank.alone_s is not None]
    if len(timed) < 2:
        return None
    longest, rank = max(timed, key=lambda each: each[0])
    return rank, longest / median(seconds for seconds, _ in timed)


def warnings_of(
    timing: Timing, result: Result, before: HostLoad, after: HostLoad, cores: int
) -> tuple[str, ...]:
    """Return sentences on noise and spread; empty after a quiet run."""
    seconds = (timing.stop_ns - timing.start_ns) / 1e9
    found = []
    enough = statistics.interval_values(timing.repeats) >= statistics.LEAST_SHOWN
    if result.ci95 is not None and enough:
        width = (result.ci95[1] - result.ci95[0]) / result.tokens_per_second
        if width > _WIDE_INTERVAL:
            found.append(
                f"wide spread: the 95 % interval spans {width:.0%} of the figure; "
                "end other programs and run again, or use --repeats 3"
            )
    if result.step_time_s is not None and result.step_time_s.cv > _WIDE_SPREAD_CV:
        found.append(f"uneven steps: their time varies by {result.step_time_s.cv:.0%} (cv)")
    if timing.step_clock == "enqueue" and seconds < _SHORT_WINDOW_S:
        found.append(
            f"short window: {seconds:.1f} s; use a larger --batch-size or --repeats 3 for a "
            "steadier figure"
        )
    if before.load_1min is not None and before.load_1min > cores / 2:
        found.append(f"the host was busy before the run: load {before.load_1min} on {cores} cores")
    share = steal_share(before, after)
    if share is not None and share > _STEAL_SHARE:
        found.append(f"the hypervisor gave {share:.0%} of the CPU time to others")
    stopped = (before.throttled_periods, after.throttled_periods)
    if None not in stopped and stopped[0] != stopped[1]:
        found.append("the container's CPU quota stopped the run at times")
    found += _telemetry_warnings(timing)
    if timing.starved_steps:
        found.append(f"{timing.starved_steps} steps waited for their seed: the figure is too low")
    return tuple(found)


def _telemetry_warnings(timing: Timing) -> list[str]:
    """Return warnings from the plugin's own gauges in the timed window, such as throttling."""
    if not timing.telemetry:
        return []
    start = timing.fence_steps.index(timing.warmup_steps)
    window = timing.telemetry[start:]
    found = []
    counts = [reading.get("compilations", 0.0) for reading in window]
    if counts[-1] > counts[0]:
        found.append(
            f"{counts[-1] - counts[0]:.0f} compilations inside the timed window: the figure is too "
            "low; ask for more --warmup-steps"
        )
    slowed = sum(reading.get("throttled", 0.0) > 0 for reading in window)
    if slowed:
        found.append(f"the device slowed itself at {slowed} of {len(window)} fences (power, heat)")
    return found
