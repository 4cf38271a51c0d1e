"""Rules T2 and T3 on the pace of a run: is it the same to the end, and the same when audited?

The two flags of T2 are for work that is put off or left out. What other programs on the host do
looks the same from outside, so where the record shows that there may have been any, or cannot show
that there was none, an odd pace is not observed instead of flagged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from llmb.audit.quiet import Host
from llmb.measure.statistics import Block, blocks
from llmb.measure.summary import steal_share
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming

_SLOPE = 0.25  # between the halves: a processor that grows warm may lose a tenth and more
_PARITY = 0.10
_LEAST_BLOCKS = 4
_LEAST_PER_KIND = 2  # blocks with an audited step, and blocks without
_LEAST_WINDOW_S = 5.0
_MISSED_CPU = 0.02  # of the cores that the worker keeps busy
_ROUNDING = 0.05  # cores: Python's own thread beside those that compute
_LAUNCHING = 1.5  # cores a process keeps busy that only enqueues work


@dataclass(frozen=True)
class _Pace:
    """How much slower one stretch of a repeat was than another, and how far that can be noise."""

    timing: RepeatTiming
    #: 0.1 where the second stretch took a tenth longer for each of its steps.
    deviation: float
    #: Spread of the blocks of the first stretch among themselves, and the gap to the second's.
    spread: float
    gap: float


def judge(repeats: Sequence[RepeatTiming], host: Host) -> tuple[Finding, Finding]:
    """Return T2's two flags: the halves of the window, and blocks with an audited step."""
    return _slope(repeats, host), _parity(repeats, host)


def _slope(repeats: Sequence[RepeatTiming], host: Host) -> Finding:
    paces = [pace for timing in repeats if (pace := _halves(timing)) is not None]
    limit = f"{_SLOPE:.0%} either way, on a quiet host"
    if not paces:
        reason = f"fewer than {_LEAST_BLOCKS} fence blocks: no halves to compare"
        return _finding(Status.NOT_OBSERVED, reason, None, limit)
    middle = sorted(paces, key=lambda pace: abs(pace.deviation))[(len(paces) - 1) // 2]
    measured = f"second half of the window {middle.deviation:+.1%} time a step"
    if abs(middle.deviation) <= _SLOPE:
        return _finding(Status.PASS, "both halves of the window at one pace", measured, limit)
    return _doubted("the halves of the window differ in pace", middle, measured, limit, host)


def _parity(repeats: Sequence[RepeatTiming], host: Host) -> Finding:
    paces = [pace for timing in repeats if (pace := _audited(timing)) is not None]
    limit = f"{_PARITY:.0%} slower, on a quiet host"
    if not any(timing.audited_steps for timing in repeats):
        return _finding(Status.NOT_OBSERVED, "no step in the window was audited", None, limit)
    if not paces:
        reason = f"fewer than {_LEAST_PER_KIND} fence blocks with an audited step, or without"
        return _finding(Status.NOT_OBSERVED, reason, None, limit)
    middle = sorted(paces, key=lambda pace: pace.deviation)[(len(paces) - 1) // 2]
    measured = f"blocks with an audited step {middle.deviation:+.1%} time a step"
    if middle.deviation <= _PARITY:
        return _finding(Status.PASS, "audited and other steps at one pace", measured, limit)
    return _doubted("blocks with an audited step are slower", middle, measured, limit, host)


def _doubted(odd: str, pace: _Pace, measured: str, limit: str, host: Host) -> Finding:
    """Return the flag for an ``odd`` pace, or why it may be noise."""
    doubts = [*_doubts(pace), *host.disturbances()]
    if doubts:
        message = f"{odd}, on a host that may have been disturbed: {'; '.join(doubts)}"
        return _finding(Status.NOT_OBSERVED, message, measured, limit)
    return _finding(Status.FLAG, odd, measured, limit)


def _doubts(pace: _Pace) -> Iterator[str]:
    timing = pace.timing
    if pace.gap <= max(pace.spread, 0.0):
        yield f"blocks vary by {pace.spread:.0%} by themselves"
    if (seconds := _window_s(timing)) < _LEAST_WINDOW_S:
        yield f"a window of {seconds:.1f} s"
    if timing.starved_steps:
        yield f"{timing.starved_steps} steps waited for their seed"
    if timing.cpu_s is None:
        yield "the worker's CPU time is not known"
        return
    busy = timing.cpu_s / seconds if seconds > 0 else 0.0
    if timing.step_clock == "enqueue" and busy < _LAUNCHING:
        return
    cores = math.ceil(busy - _ROUNDING)
    if busy < (1 - _MISSED_CPU) * cores:
        yield f"the worker kept {busy:.2f} of {cores} cores busy"


def _halves(timing: RepeatTiming) -> _Pace | None:
    """Return the second half of the window against the first, None with too few blocks."""
    every = blocks(timing)
    if len(every) < _LEAST_BLOCKS:
        return None
    done = list(accumulate(block.steps for block in every))
    cut = min(range(1, len(every)), key=lambda i: abs(2 * done[i - 1] - done[-1]))
    return _compare(timing, every[:cut], every[cut:])


def _audited(timing: RepeatTiming) -> _Pace | None:
    """Return blocks with an audited step against those without, None with too few of either."""
    kinds: dict[bool, list[Block]] = {True: [], False: []}
    end = timing.warmup_steps
    for block in blocks(timing):
        begin, end = end, end + block.steps  # the steps counted from 0: the first is ``begin``
        kinds[any(begin <= step < end for step in timing.audited_steps)].append(block)
    if min(map(len, kinds.values())) < _LEAST_PER_KIND:
        return None
    return _compare(timing, kinds[False], kinds[True])


def _compare(timing: RepeatTiming, one: Sequence[Block], other: Sequence[Block]) -> _Pace:
    """Return the pace of the ``other`` blocks against the ``one``'s."""
    usual, odd = (sum(b.ns for b in part) / sum(b.steps for b in part) for part in (one, other))
    paces = [[block.ns / block.steps for block in part] for part in (one, other)]
    spread = (max(paces[0]) - min(paces[0])) / usual
    slower, faster = min(paces[1]) - max(paces[0]), min(paces[0]) - max(paces[1])
    return _Pace(timing, odd / usual - 1, spread, max(slower, faster) / usual)


def _window_s(timing: RepeatTiming) -> float:
    return (timing.stop_ns - timing.start_ns) / 1e9
