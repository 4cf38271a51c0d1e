"""Rules T1 and T2: two clocks agree, and every scheduled fence returned results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmb.audit.bench import Bench
from llmb.audit.quiet import disturbances, hindrances
from llmb.audit.rule import Rule
from llmb.records.draws import fence_every
from llmb.records.finding import RULES_VERSION, Finding, Level, Status
from llmb.records.run_record import RepeatTiming
from llmb.records.system import SystemDescription

_RELATIVE, _ABSOLUTE_NS = 0.001, 5_000_000
#: On a host that may have been disturbed: at a load of 9 on 2 cores the latest of 120 stamps came
#: 29.5 ms after the worker's; 3 of 30 honest windows were out by more than 7 ms (docs/adr/0039).
_DISTURBED_NS = 50_000_000
#: There, in a window shorter than that of any official run, up to so much is not observed instead:
#: an honest run of 0.9 s at a load of 9 on 2 cores was 61 ms out.
_DOUBTFUL_NS = 200_000_000
_OLD_RELATIVE, _OLD_ABSOLUTE_NS = 0.005, 50_000_000  # rules 2 (docs/adr/0008)
#: Seconds: rule T2 judges the pace of no shorter window, and T1's 5 ms are 0.1 % of it.
LEAST_WINDOW_S = 5.0


T1 = Rule(
    "T1",
    Level.BLOCK,
    "the clocks of supervisor and worker agree",
    measured="the window's length by supervisor and worker",
    limit="0.1 % + 5 ms; 0.1 % + 50 ms on a host that may have been disturbed, and not observed up "
    "to 200 ms there in a window under 5 s (rules 2: 0.5 % + 50 ms)",
    cannot_see="a faked kernel clock",
    observer="supervisor",
    per_run=True,
    causes=(
        "a clock of the machine that was set or slewed during the window, as by an NTP step",
        "a virtual machine that was paused or migrated during the window",
    ),
)
T2 = Rule(
    "T2",
    Level.BLOCK,
    "every fence synchronised the device and read results back",
    measured="fences and their order; the pace of both halves of the window, and in modes forward "
    "and generate of blocks with audited calls; the tail",
    limit="every fence present and in order; an equal pace, except for possible disturbances of "
    "the host",
    cannot_see="unfinished work that does not affect the values read back by a fence",
    observer="supervisor",
    per_run=True,
    also_flags=True,
    causes=(
        "a backend whose synchronize waits for one stream or queue of several",
        "other programs, or a clock that the device lowered because of heat, in one part of "
        "the window",
    ),
)
RULES = (T1, T2)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield T1 and T2; the module ``pace`` judges T2's flags."""
    repeats = bench.facts.repeats
    yield judge_clocks(repeats, bench.facts.system, bench.facts.rules_version)
    yield judge_schedule(repeats, bench.facts.workload.mode)


def judge_clocks(
    repeats: Sequence[RepeatTiming],
    system: SystemDescription,
    rules_version: str = RULES_VERSION,
) -> Finding:
    """Return T1: window lengths by supervisor and worker differ by at most 0.1 % + 5 ms.

    A host that runs other programs may stamp a message later. Runs made under rules 2 stamped a
    fence after the plugin's readings. Both have wider limits.
    """
    worst: tuple[float, str, str, list[str], bool] | None = None
    for timing in repeats:
        doubts = [*hindrances(timing, system), *disturbances(system)]
        absolute_ns = _DISTURBED_NS if doubts else _ABSOLUTE_NS
        relative = _RELATIVE
        if rules_version == "2":
            relative, absolute_ns = _OLD_RELATIVE, _OLD_ABSOLUTE_NS
        by_step = dict(zip(timing.fence_steps, timing.fence_worker_ns, strict=True))
        begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
        supervisor = timing.stop_ns - timing.start_ns
        worker = by_step[end] - by_step[begin]
        excess = abs(supervisor - worker) - (relative * supervisor + absolute_ns)
        short = bool(doubts) and rules_version != "2" and supervisor < LEAST_WINDOW_S * 1e9
        fails = excess > (_DOUBTFUL_NS - absolute_ns if short else 0)
        if worst is None or (fails, excess) > (worst[4], worst[0]):
            measured = f"{(worker - supervisor) / 1e6:+.3f} ms in {supervisor / 1e9:.3f} s"
            limit = f"{100 * relative:.1f} % + {absolute_ns / 1e6:.0f} ms"
            worst = excess, measured, limit, doubts, fails
    excess, measured, limit, doubts, fails = worst or (1.0, "", T1.limit, [], True)
    agree = excess <= 0
    said = "supervisor's and worker's clocks agree" if agree else "the two clocks disagree"
    if doubts and not agree:
        said += f", by more than other programs on the host explain ({'; '.join(doubts)})"
    odd = Status.FAIL if fails else Status.NOT_OBSERVED
    return T1.finding(
        Status.PASS if agree else odd,
        said,
        measured=measured,
        honest="0 ms",
        limit=limit,
    )


def judge_schedule(repeats: Sequence[RepeatTiming], mode: str = "train") -> Finding:
    """Return T2 for the fences."""
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
        # Count before listing: a hostile record may claim a window of any length.
        return [f"the window from step {begin} to {end} lacks fences or has more"]
    expected = {*range(begin, end, every), end}
    # Where the window is no multiple of ``every`` long, the stream also has a fence at STOP's other
    # possible position (``stream.Window.stops``).
    extra = {step for step in timing.fence_steps if begin <= step <= end} - expected
    faults = []
    if len({*timing.fence_steps}) != len(timing.fence_steps):
        faults.append("two fences are claimed after one step")
    if expected - {*timing.fence_steps} or extra - {end - every}:
        faults.append(f"the window from step {begin} to {end} lacks fences or has more")
    if any(b <= a for a, b in zip(timing.fence_ns, timing.fence_ns[1:], strict=False)):
        faults.append("fences are out of order")
    return faults
