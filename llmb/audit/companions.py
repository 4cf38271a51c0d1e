"""Rule N2 during the stream: acts of plugin code, threads, child processes.

Example of an act: ``subprocess.Popen``. The module ``surroundings`` judges the state at the end of
the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from llmb.records.evidence import Act, SurroundingsEvidence, ThreadSeen
from llmb.records.run_record import COMPILATIONS_COUNTED, DeclaredHelper, RepeatTiming

#: Events that reading a device's gauges may cause: loading a library, running a vendor's program
#: such as a monitoring tool, starting a thread.
_TO_READ = ("ctypes.", "subprocess.", "os.", "pty.", "_thread.", "sys._getframe")
#: Python keeps an audit hook until the process ends: a hook added before START still runs in the
#: timed steps.
_LASTING = {"sys.addaudithook"}
#: Whoever has once read a frame or the collector's objects may keep llmb's own objects: the stream
#: of steps tells the plugin which step is judged (rule G1).
_LOOKS = ("sys._getframe", "sys._current_", "gc.get_", "read of ")
#: A helper's CPU time may be off by one tick of the system's clock at both ends.
_TICKS_S = 0.02
#: Allowed CPU time of children, and of ended threads: a child that only waits still wakes up at
#: times.
_UNSEEN_SHARE, _UNSEEN_S = 0.02, 0.1


def faults(
    evidence: SurroundingsEvidence,
    timing: RepeatTiming,
    helpers: Sequence[DeclaredHelper],
    *,
    ever_looked: bool = False,
) -> Iterator[str]:
    """Yield undeclared acts, threads and CPU time in one repeat, from START on.

    ``ever_looked``: reads of frames and of the collector's objects by the plugin's own code count
    at any time, because steps are judged (rule G1).
    """
    start = timing.warmup_steps
    for act in evidence.acts:
        times = f", {act.count} times" if act.count > 1 else ""
        if act.event in _LASTING:
            yield f"{act.event} by {_whose(act)} at {act.place}, which lasts{times}"
        elif act.blocks[-1] >= start and not _is_reading(act):
            yield f"{act.event} by {_whose(act)} at {act.place} in the timed steps{times}"
        elif ever_looked and act.origin != "other" and act.event.startswith(_LOOKS):
            yield (
                f"{act.event} by {_whose(act)} at {act.place}: what it found may be kept until the "
                f"timed steps{times}"
            )
    if evidence.acts_omitted:
        yield f"{evidence.acts_omitted} acts of plugin code more than are kept"
    for thread in evidence.threads:
        if thread.last > start:
            yield from _thread_faults(thread, helpers)
    yield from _unseen_faults(evidence, timing)


def notes(evidence: SurroundingsEvidence, timing: RepeatTiming) -> Iterator[str]:
    """Yield remarks that are not faults, such as the CPU share of a declared helper thread."""
    for act in evidence.acts:
        if act.blocks[-1] >= timing.warmup_steps and _is_reading(act):
            yield f"{act.event} at {act.place}, for readings at fences"
    for thread in evidence.threads:
        if thread.last > timing.warmup_steps and thread.cpu_s is not None:
            yield f"helper thread {thread.name} took {_share(thread):.2%} of a core"


def is_declared(name: str, helpers: Sequence[DeclaredHelper]) -> bool:
    """Tell whether ``helpers`` declare a thread called ``name``."""
    return any(fnmatchcase(name, helper.name) for helper in helpers)


def _is_reading(act: Act) -> bool:
    return act.invited and act.event.startswith(_TO_READ)


def _thread_faults(thread: ThreadSeen, helpers: Sequence[DeclaredHelper]) -> Iterator[str]:
    declared = [each.cpu_share for each in helpers if fnmatchcase(thread.name, each.name)]
    if not declared:
        yield (
            f"thread {thread.name} of {_whose(thread)}, which llmb_helpers does not declare with a "
            "reason and its share of CPU time"
        )
    elif thread.cpu_s is None:
        return  # the system does not report CPU time of threads
    elif thread.cpu_s > max(declared) * thread.wall_s + _TICKS_S:
        yield (
            f"helper thread {thread.name} took {_share(thread):.1%} of a core, and declares "
            f"{max(declared):.1%}"
        )


def _share(thread: ThreadSeen) -> float:
    return (thread.cpu_s or 0.0) / thread.wall_s if thread.wall_s else 0.0


def _unseen_faults(evidence: SurroundingsEvidence, timing: RepeatTiming) -> Iterator[str]:
    """Yield CPU time from START to STOP of processes and threads that are no longer visible."""
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    seconds = (timing.stop_ns - timing.start_ns) / 1e9
    for who, told in (
        ("child processes", evidence.children_cpu_s),
        ("threads that have ended", evidence.ended_threads_cpu_s),
    ):
        if begin in told and end in told and not _compiled(timing):
            took = told[end] - told[begin]
            if took > _UNSEEN_SHARE * seconds + _UNSEEN_S:
                yield f"{who} took {took:.1f} s of CPU time in the {seconds:.1f} s that are timed"


def _compiled(timing: RepeatTiming) -> bool:
    """Tell whether a program was compiled in the window: compilers run processes of their own.

    By llmb's own count of torch's and thunder's programs: what the plugin's telemetry says excuses
    no process of the plugin.
    """
    counts = dict(zip(timing.fence_steps, timing.telemetry, strict=False))
    start = counts.get(timing.warmup_steps, {}).get(COMPILATIONS_COUNTED, 0.0)
    stop = counts.get(timing.warmup_steps + timing.timed_steps, {}).get(COMPILATIONS_COUNTED, 0.0)
    return stop > start


def _whose(seen: Act | ThreadSeen) -> str:
    if seen.origin == "plugin":
        return "the plugin"
    return seen.distribution or "unknown origin"
