"""Disturbances of the host: reasons not to blame a run for an odd speed."""

from __future__ import annotations

from collections.abc import Iterator

from llmb.measure.summary import steal_share
from llmb.records.run_record import RepeatTiming
from llmb.records.system import SystemDescription

_BUSY_BEFORE = 0.5  # of the cores, in the last minute before the run: other programs
_BUSY_AFTER = 1.25  # of the cores: a run keeps at most all cores busy
_STEAL = 0.02
_ALL_CORES = 0.97  # official runs alone on a host used 0.987 to 0.995 of all cores
_LAUNCHING = 1.5  # cores kept busy by a process that only launches work on a device


def disturbances(system: SystemDescription) -> Iterator[str]:
    """Yield known or possible disturbances of the host, such as load; none on a quiet host."""
    before, after, cores = system.load_before, system.load_after, system.cpu.usable_cores
    if before.load_1min is None or after.load_1min is None:
        yield "the host's load is not known"
    elif before.load_1min > _BUSY_BEFORE * cores:
        yield f"load {before.load_1min:.1f} on {cores} cores before the run"
    elif after.load_1min > _BUSY_AFTER * cores:
        yield f"load {after.load_1min:.1f} on {cores} cores after the run"
    share = steal_share(before, after)
    if share is not None and share > _STEAL:
        yield f"{share:.0%} of the host's CPU time went to other machines"
    if before.throttled_periods != after.throttled_periods:
        yield "the container's CPU quota stopped the run"


def hindrances(timing: RepeatTiming, system: SystemDescription) -> Iterator[str]:
    """Yield reasons why the worker may have waited at times; none where waiting is ruled out.

    A CPU that computes was the worker's alone if all cores were busy for the worker, and only then:
    the record does not contain the number of threads of a run.
    """
    seconds = (timing.stop_ns - timing.start_ns) / 1e9
    if timing.cpu_s is None or seconds <= 0:
        yield "the worker's CPU time is not known"
    else:
        cores, busy = _computing_cores(system), timing.cpu_s / seconds
        computes = timing.step_clock == "host" or busy >= _LAUNCHING
        load = system.load_after.load_1min or 0.0
        if computes and busy < _ALL_CORES * cores:
            yield f"the worker had {busy:.2f} of {cores} cores"
        elif not computes and load - busy > _BUSY_BEFORE * cores:
            yield f"load {load:.1f} after the run, of which the worker made {busy:.1f}"
    if timing.starved_steps:
        yield f"{timing.starved_steps} steps waited for their seed"


def told_by_plugin(timing: RepeatTiming) -> Iterator[str]:
    """Yield what the plugin's telemetry tells of the window; a plugin may tell anything."""
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    window = [
        reading
        for steps, reading in zip(timing.fence_steps, timing.telemetry, strict=False)
        if begin <= steps <= end
    ]
    if any(reading.get("throttled", 0.0) > 0 for reading in window):
        yield "the device slowed itself"
    if len({reading.get("compilations", 0.0) for reading in window}) > 1:
        yield "programs were compiled inside the window"


def _computing_cores(system: SystemDescription) -> int:
    """Return the physical cores available to the run: one thread computes on each."""
    cpu = system.cpu
    if not cpu.physical_cores or not cpu.logical_cores:
        return cpu.usable_cores
    return max(1, cpu.usable_cores * cpu.physical_cores // cpu.logical_cores)
