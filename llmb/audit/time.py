"""Rules T1 and T2: two clocks agree, and every fence of the schedule came back with results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmb.audit.bench import Bench
from llmb.audit.rule import Rule
from llmb.records.finding import Finding, Level, Status
from llmb.records.run_record import RepeatTiming

_RELATIVE = 0.005
_ABSOLUTE_NS = 50_000_000  # how late a busy host may stamp a message (docs/adr/0008)
FENCE_EVERY = 10


T1 = Rule(
    "T1",
    Level.BLOCK,
    "the clocks of supervisor and worker agree",
    measured="the window's length by supervisor and worker",
    limit="0.5 % + 50 ms",
    cannot_see="a faked kernel clock",
    observer="supervisor",
    per_run=True,
)
T2 = Rule(
    "T2",
    Level.BLOCK,
    "every fence synchronised the device and read results back",
    measured="fences and their order; the pace of both halves of the window, and of blocks with "
    "audited steps",
    limit="every fence there and in order; at one pace, but for what the host may have disturbed",
    cannot_see="work that nothing depends on which a fence reads back",
    observer="supervisor",
    per_run=True,
    also_flags=True,
)
RULES = (T1, T2)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield T1 and T2; what flags T2 is judged by ``pace``."""
    repeats = bench.facts.repeats
    yield judge_clocks(repeats)
    yield judge_schedule(repeats, bench.facts.workload.mode)


def fence_every(mode: str) -> int:
    """Return the steps between two fences: calls and samples have a fence each."""
    return FENCE_EVERY if mode == "train" else 1


def judge_clocks(repeats: Sequence[RepeatTiming]) -> Finding:
    """Return T1: window lengths by supervisor and worker differ by at most 0.5 % + 50 ms."""
    worst_excess, worst = None, ""
    for timing in repeats:
        by_step = dict(zip(timing.fence_steps, timing.fence_worker_ns, strict=True))
        begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
        supervisor = timing.stop_ns - timing.start_ns
        worker = by_step[end] - by_step[begin]
        excess = abs(supervisor - worker) - (_RELATIVE * supervisor + _ABSOLUTE_NS)
        if worst_excess is None or excess > worst_excess:
            worst_excess = excess
            worst = f"{(worker - supervisor) / 1e6:+.3f} ms in {supervisor / 1e9:.3f} s"
    agree = worst_excess is not None and worst_excess <= 0
    return T1.finding(
        Status.PASS if agree else Status.FAIL,
        "supervisor's and worker's clocks agree" if agree else "the two clocks disagree",
        measured=worst,
        honest="0 ms",
        limit=T1.limit,
    )


def judge_schedule(repeats: Sequence[RepeatTiming], mode: str = "train") -> Finding:
    """Return T2 for the fences themselves."""
    every = fence_every(mode)
    faults = [fault for timing in repeats for fault in _fence_faults(timing, every)]
    if not repeats:
        faults.append("there is no repeat")
    count = sum(len(timing.fence_steps) for timing in repeats)
    return T2.finding(
        Status.FAIL if faults else Status.PASS,
        faults[0] if faults else "every fence came back with loss and parameter bits",
        measured=f"{count} fences",
        honest="a fence after every step, in order"
        if every == 1
        else f"a fence every {every} steps, in order",
    )


def _fence_faults(timing: RepeatTiming, every: int) -> list[str]:
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    if timing.timed_steps > every * len(timing.fence_steps):
        # Counted before they are listed: a stranger's window may have any length.
        return [f"the window from step {begin} to {end} lacks fences or has more"]
    expected = {*range(begin, end, every), end}
    # Where the window is no multiple of ``every`` long, STOP's double (``stream.Window``) shows.
    extra = {step for step in timing.fence_steps if begin <= step <= end} - expected
    faults = []
    if len({*timing.fence_steps}) != len(timing.fence_steps):
        faults.append("two fences are claimed after one step")
    if expected - {*timing.fence_steps} or extra - {end - every}:
        faults.append(f"the window from step {begin} to {end} lacks fences or has more")
    if any(b <= a for a, b in zip(timing.fence_ns, timing.fence_ns[1:], strict=False)):
        faults.append("fences are out of order")
    return faults
