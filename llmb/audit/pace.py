"""Rules T2 and T3 on the pace of a run: constant to the end, and the same in audited steps.

The flags of T2 are for work postponed or left out. Other programs on the host look the same from
outside. An odd pace is therefore "not observed" instead of flagged where the record shows possible
disturbances, or cannot exclude disturbances. Measured on 4 cores at a load of 7 to 15: the halves
differed by more than a quarter in 868 of 3,671 windows of two honest runs, by up to 5 times. None
was flagged, not even with the load left out of the record.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from llmb.audit.bench import Bench
from llmb.audit.quiet import disturbances, hindrances, told_by_plugin
from llmb.audit.rule import Rule
from llmb.audit.time import LEAST_WINDOW_S, T2
from llmb.measure.statistics import StepBlock, blocks
from llmb.measure.summary import steal_share
from llmb.records.finding import JUDGED_SINCE, Finding, Level, Status
from llmb.records.run_record import RepeatTiming
from llmb.records.system import SystemDescription

T3 = Rule(
    "T3",
    Level.NOTE,
    "the run was stationary on a quiet host",
    measured="trend, CPU time, steal, load",
    limit="none: context",
    cannot_see="other programs on a system that counts neither load nor steal",
    observer="supervisor",
    per_run=True,
)
RULES = (T2, T3)
_SLOPE = 0.25  # between the halves: a CPU that grows warm may lose a tenth or more
_PARITY = 0.10
_LEAST_BLOCKS = 4
_LEAST_PER_KIND = 2  # blocks with an audited step, and blocks without
#: Extra time allowed for an audited call or step, because the harness reads logits or gradients:
#: honest debug runs took 0.03 s. None for trainings since rules 4, which stop the clock instead.
_READING_NS = 100_000_000
#: For the pass over memory: weight, gradient and both moments with four bytes each, at the speed of
#: one channel of DDR4.
_BYTES_OF_A_PARAMETER, _BYTES_PER_NS = 16, 10


@dataclass(frozen=True)
class _Pace:
    """Slowdown of one stretch of a repeat against another, and the size of the noise."""

    timing: RepeatTiming
    #: Example: 0.1 where the second stretch took a tenth longer for each step.
    deviation: float
    #: Variation among blocks of one kind, and whether the deviation is clearly larger.
    spread: float
    clear: bool


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield T2's flags, and T3."""
    repeats, system = bench.facts.repeats, bench.facts.system
    # Where rule L1 compares every step, audited steps do no extra reading.
    every_step = all(bench.of(number).every_step for number in range(len(repeats)))
    stops = bench.trains and int(bench.facts.rules_version) >= JUDGED_SINCE
    reads = not (every_step or stops)
    yield _slope(repeats, system)
    if reads:
        yield _parity(repeats, system)
    # A device that records steps compiles the last call anew; by rules 3 the last step, too.
    earlier = int(bench.facts.rules_version) < JUDGED_SINCE
    anew = bench.facts.records_steps and (earlier or not bench.trains)
    if any(timing.tail for timing in repeats) and not anew:
        reading_ns = _READING_NS if reads else 0
        yield _tail(repeats, system, bench.facts.workload.parameters, reading_ns)
    yield judge_stationarity(repeats, system)


def _slope(repeats: Sequence[RepeatTiming], system: SystemDescription) -> Finding:
    paces = [pace for timing in repeats if (pace := _halves(timing)) is not None]
    limit = f"{_SLOPE:.0%} either way, on a quiet host"
    if not paces:
        reason = f"fewer than {_LEAST_BLOCKS} fence blocks: no halves to compare"
        return _finding(Status.NOT_OBSERVED, reason, None, limit)
    middle = sorted(paces, key=lambda pace: abs(pace.deviation))[(len(paces) - 1) // 2]
    measured = f"second half of the window {middle.deviation:+.1%} time a step"
    if abs(middle.deviation) <= _SLOPE:
        return _finding(Status.PASS, "both halves of the window at one pace", measured, limit)
    return _doubted("the halves of the window differ in pace", middle, measured, limit, system)


def _parity(repeats: Sequence[RepeatTiming], system: SystemDescription) -> Finding:
    paces = [pace for timing in repeats if (pace := _audited(timing)) is not None]
    limit = f"{_PARITY:.0%} slower beside {_READING_NS / 1e9} s for reading, on a quiet host"
    if not paces:
        reason = f"fewer than {_LEAST_PER_KIND} fence blocks with an audited step, or without"
        return _finding(Status.NOT_OBSERVED, reason, None, limit)
    middle = sorted(paces, key=lambda pace: pace.deviation)[(len(paces) - 1) // 2]
    measured = (
        f"blocks with an audited step {middle.deviation:+.1%} time a step, without reading it"
    )
    if middle.deviation <= _PARITY:
        return _finding(Status.PASS, "audited and other steps at one pace", measured, limit)
    return _doubted("blocks with an audited step are slower", middle, measured, limit, system)


def _tail(
    repeats: Sequence[RepeatTiming], system: SystemDescription, parameters: int, reading_ns: int
) -> Finding:
    """Return the flag for the time after STOP: the steps, and the answer to the last request.

    In the pause of the last step a worker already has the gradients: nothing is left to compute.
    """
    memory_ns = int(parameters * _BYTES_OF_A_PARAMETER / _BYTES_PER_NS)
    limit = f"a step and a pass over memory ({memory_ns / 1e9:.1f} s), on a quiet host"
    late: list[tuple[float, _Pace, str]] = []
    for timing in repeats:
        every, tail = _blocks(timing), timing.tail
        if tail is None or not every:
            continue
        slowest = max(map(_pace, every)) * (1 + _SLOPE)
        steps_ns, answer_ns = tail.paused_ns - timing.stop_ns, tail.ended_ns - tail.told_ns
        reads = reading_ns * (1 + tail.steps)
        for what, took, most in (
            ("steps after the window", steps_ns, slowest * (tail.steps + 1) + reads),
            ("the answer to the last step", answer_ns, slowest + memory_ns + reading_ns),
        ):
            measured = f"{what}: {took / 1e9:.2f} s of {most / 1e9:.2f} s"
            pace = _Pace(timing, took / most - 1, _spread(every), clear=True)
            late.append((took / most, pace, measured))
    if not late:
        return _finding(Status.NOT_OBSERVED, "no fence blocks to compare with", None, limit)
    worst, pace, measured = max(late, key=lambda each: each[0])
    if worst <= 1:
        return _finding(Status.PASS, "the stream ended at the pace of the window", measured, limit)
    odd = "the stream did not end at the pace of the window"
    return _doubted(odd, pace, measured, limit, system)


def _doubted(
    odd: str, pace: _Pace, measured: str, limit: str, system: SystemDescription
) -> Finding:
    """Return the flag for an ``odd`` pace, or reasons why the pace may be noise."""
    doubts = [*hindrances(pace.timing, system), *disturbances(system)]
    if not pace.clear:
        doubts.append(f"blocks vary by {pace.spread:.0%} by themselves")
    if (seconds := _window_s(pace.timing)) < LEAST_WINDOW_S:
        doubts.append(f"a window of {seconds:.1f} s")
    if doubts:
        message = f"{odd}, on a host that may have been disturbed: {'; '.join(doubts)}"
        return _finding(Status.NOT_OBSERVED, message, measured, limit)
    if told := "; ".join(told_by_plugin(pace.timing)):
        odd += f" (by the plugin's telemetry, which may tell anything: {told})"
    return _finding(Status.FLAG, odd, measured, limit)


def _halves(timing: RepeatTiming) -> _Pace | None:
    """Return the second half of the window against the first; None: too few blocks."""
    every = _blocks(timing)
    if len(every) < _LEAST_BLOCKS:
        return None
    done = list(accumulate(block.steps for block in every))
    cut = min(range(1, len(every)), key=lambda i: abs(2 * done[i - 1] - done[-1]))
    first, second = every[:cut], every[cut:]
    # Postponed work may show in a single block: the steadier half tells the size of the noise.
    deviation, spread = _slower(second, first), min(_spread(first), _spread(second))
    return _Pace(timing, deviation, spread, abs(deviation) > 2 * spread)


def _audited(timing: RepeatTiming) -> _Pace | None:
    """Return blocks with an audited step against blocks without; None: too few of either."""
    others: list[StepBlock] = []
    audited: list[StepBlock] = []
    end, looked_at = timing.warmup_steps, sorted(timing.audited_steps)
    for block in _blocks(timing):
        begin, end = end, end + block.steps  # the block's first step is ``begin``, counted from 0
        reads = bisect_left(looked_at, end) - bisect_left(looked_at, begin)
        unread = StepBlock(block.steps, max(1, block.ns - reads * _READING_NS))
        (audited if reads else others).append(unread)
    if min(len(others), len(audited)) < _LEAST_PER_KIND:
        return None
    spread = _spread(others)
    gap = min(map(_pace, audited)) - max(map(_pace, others))
    clear = gap > spread * statistics.fmean(map(_pace, others))
    return _Pace(timing, _slower(audited, others), spread, clear)


def _blocks(timing: RepeatTiming) -> tuple[StepBlock, ...]:
    """Return the fence blocks of the window; none where the stamps are not increasing."""
    every = blocks(timing)
    return every if all(block.steps > 0 and block.ns > 0 for block in every) else ()


def _pace(block: StepBlock) -> float:
    """Return nanoseconds per step."""
    return block.ns / block.steps


def _slower(some: Sequence[StepBlock], others: Sequence[StepBlock]) -> float:
    """Return the relative extra time per step in ``some`` blocks against ``others``."""
    one, other = (sum(b.ns for b in part) / sum(b.steps for b in part) for part in (some, others))
    return one / other - 1


def _spread(some: Sequence[StepBlock]) -> float:
    paces = [_pace(block) for block in some]
    return max(paces) / min(paces) - 1


def _window_s(timing: RepeatTiming) -> float:
    return (timing.stop_ns - timing.start_ns) / 1e9


def judge_stationarity(repeats: Sequence[RepeatTiming], system: SystemDescription) -> Finding:
    """Return T3, which only informs: steadiness of the run, and disturbances of the host."""
    told = [f"repeat {n}: {_steadiness(timing)}" for n, timing in enumerate(repeats)]
    other = "; ".join(disturbances(system))
    return T3.finding(
        Status.NOTE,
        other or "nothing in the record says that the host was disturbed",
        measured="; ".join([*told, f"host: {_host(system)}"]),
        basis=None,
    )


def _steadiness(timing: RepeatTiming) -> str:
    every = _blocks(timing)
    said = []
    if len(every) > 1:
        paces = [_pace(block) for block in every]
        mean, deviation = statistics.fmean(paces), statistics.stdev(paces)
        trend = statistics.linear_regression(range(len(paces)), paces).slope * (len(paces) - 1)
        of = f"over {len(paces)} fence blocks"
        said.append(f"trend {trend / mean:+.1%} and cv {deviation / mean:.1%} {of}")
    seconds = _window_s(timing)
    if timing.cpu_s is not None and seconds > 0:
        said.append(f"{timing.cpu_s / seconds:.2f} cores busy")
    if timing.telemetry:
        slowed = sum(reading.get("throttled", 0.0) > 0 for reading in timing.telemetry)
        said.append(f"device slowed at {slowed} of {len(timing.telemetry)} fences")
    if timing.stops:
        stopped_s = sum(stop.ns for stop in timing.stops) / 1e9
        said.append(f"the clock stopped {len(timing.stops)} times for {stopped_s:.2f} s")
    said.append(f"{timing.starved_steps} steps waited for their seed")
    return ", ".join(said)


def _host(system: SystemDescription) -> str:
    before, after = system.load_before, system.load_after
    first, last = (
        "not measured" if load.load_1min is None else f"{load.load_1min:.1f}"
        for load in (before, after)
    )
    share = steal_share(before, after)
    stolen = "not measured" if share is None else f"{share:.1%}"
    stopped = "not measured"
    if before.throttled_periods is not None and after.throttled_periods is not None:
        stopped = f"{after.throttled_periods - before.throttled_periods} times"
    on = f"on {system.cpu.usable_cores} cores"
    return (
        f"load {first} before and {last} after {on}, steal {stolen}, stopped by a quota {stopped}"
    )


def _finding(status: Status, message: str, measured: str | None, limit: str) -> Finding:
    figures = {"measured": measured, "honest": "no difference", "limit": limit}
    return T2.finding(status, message, level=Level.FLAG, **figures)
