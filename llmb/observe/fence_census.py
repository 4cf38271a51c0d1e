"""Record threads and child processes beside a worker's steps, with CPU times, at every fence.

A fence must be quick: only stacks and numbers are recorded at a fence. Owners of threads are found
at the end of the stream.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import psutil

from llmb import clock
from llmb.observe.callables import code_of
from llmb.observe.origins import CodeOrigin, Origins
from llmb.records.evidence import ThreadSeen
from llmb.records.redact import redact_text

_PROC = Path("/proc")
_TASKS = _PROC / "self" / "task"
#: Most threads to read CPU times of at a fence: each read takes about 15 microseconds.
_MOST_ASKED = 64
_MOST_THREADS = 1000
_LONGEST = 200  # characters of a name
_JUDGED = ("plugin", "unknown", "other")


def wait_for_children(patience_s: float = 20.0) -> None:
    """Wait until the child processes of this process are idle, for ``patience_s`` at most.

    torch.compile starts a process per core. The processes import torch for seconds after the first
    step: during timed steps the imports would occupy cores, and rule N2 would ask for the owner of
    the work. Idle means at most a tick of CPU time (10 ms) in each of two quarters of a second.
    Without children the function returns at once.
    """
    ends, calm = clock.now_ns() + patience_s * 1e9, 0
    while calm < 2 and psutil.Process().children() and clock.now_ns() < ends:
        natives = {thread.native_id or os.getpid() for thread in threading.enumerate()}
        before = _children_cpu_s(natives)
        time.sleep(0.25)
        calm = calm + 1 if _children_cpu_s(natives) - before < 0.02 else 0


@dataclass
class _ThreadMet:
    """A thread as first seen, and the thread's clocks at the first and the latest fence."""

    thread: threading.Thread | None
    files: list[str]
    innermost: str
    first: int
    last: int
    first_ns: int
    last_ns: int
    #: CPU time in nanoseconds, None where the system reports none.
    first_cpu: int | None
    last_cpu: int | None


@dataclass(slots=True, eq=False)
class FenceCensus:
    """Threads and children at every fence."""

    #: Tells whether a thread (object, identity) existed before the plugin.
    _known: Callable[[threading.Thread | None, int], bool]
    #: Gives the file of the code that started a thread.
    _starter: Callable[[threading.Thread], str | None]
    #: Gives the file of code, or of the code's maker.
    _file_of: Callable[[CodeType], str]
    #: Time (nanoseconds of the worker's clock) and steps done, of every fence up to now.
    stamps: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    _seen: dict[tuple[int, int | None], _ThreadMet] = field(default_factory=dict)
    _children: dict[int, float] = field(default_factory=dict)
    _ended: dict[int, float] = field(default_factory=dict)

    def look(self, steps: int, stamp_ns: int) -> None:
        """Record threads and children at the fence after ``steps`` steps, at ``stamp_ns``."""
        self.stamps.append(stamp_ns)
        self.steps.append(steps)
        threads = {thread.ident: thread for thread in threading.enumerate()}
        natives = {os.getpid()}  # the main thread's number
        for identity, frame in sys._current_frames().items():
            thread = threads.get(identity)
            native = thread.native_id if thread is not None else None
            if native is not None:
                natives.add(native)
            if not self._known(thread, identity):
                self._meet((identity, native), thread, frame, steps, stamp_ns)
        self._children[steps] = _children_cpu_s(natives)
        if (ended := _ended_threads_cpu_s()) is not None:
            self._ended[steps] = ended

    def _meet(
        self,
        key: tuple[int, int | None],
        thread: threading.Thread | None,
        frame: FrameType,
        steps: int,
        stamp_ns: int,
    ) -> None:
        cpu = None if key[1] is None else _cpu_ns(key[1])
        seen = self._seen.get(key)
        if seen is not None:
            seen.last, seen.last_ns, seen.last_cpu = steps, stamp_ns, cpu
        elif len(self._seen) < _MOST_THREADS:
            files, where = files_of(thread, frame, self._file_of), innermost(frame)
            self._seen[key] = _ThreadMet(
                thread, files, where, steps, steps, stamp_ns, stamp_ns, cpu, cpu
            )

    def threads(self, origins: Origins) -> Iterator[ThreadSeen]:
        """Yield threads run or started by code of the plugin or of unknown origin."""
        for seen in self._seen.values():
            origin = self._origin(seen, origins)
            if origin is None or origin.origin not in _JUDGED:
                continue
            name = seen.thread.name if seen.thread is not None else f"unnamed in {seen.innermost}"
            cpu_s = None
            if seen.first_cpu is not None and seen.last_cpu is not None:
                cpu_s = max(0, seen.last_cpu - seen.first_cpu) / 1e9
            yield ThreadSeen(
                name=redact_text(str(name))[:_LONGEST],
                origin=origin.origin,
                distribution=origin.distribution,
                first=seen.first,
                last=seen.last,
                cpu_s=cpu_s,
                wall_s=(seen.last_ns - seen.first_ns) / 1e9,
            )

    def _origin(self, seen: _ThreadMet, origins: Origins) -> CodeOrigin | None:
        """Return the origin of a thread; None if only Python's own code is known of the thread."""
        for file in seen.files:
            if (found := origins.of(file)).origin != "python":
                return found
        started = self._starter(seen.thread) if seen.thread is not None else None
        return origins.of(started) if started is not None else None

    @property
    def children_cpu_s(self) -> dict[int, float]:
        """CPU seconds of child processes until each fence, ended ones included, by steps done."""
        return dict(self._children)

    @property
    def ended_threads_cpu_s(self) -> dict[int, float]:
        """CPU seconds of ended threads until each fence, by steps done."""
        return dict(self._ended)


def files_of(
    thread: threading.Thread | None, frame: FrameType | None, file_of: Callable[[CodeType], str]
) -> list[str]:
    """Return the files on a thread's stack, the first called first, then that of its target.

    ``file_of`` gives the file of code.
    """
    target = code_of(getattr(thread, "_target", None))
    files = [] if target is None else [file_of(target)]
    while frame is not None:
        files.insert(0, file_of(frame.f_code))
        frame = frame.f_back
    return files


def innermost(frame: FrameType) -> str:
    """Return module and name of the function that ``frame`` is in."""
    return f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_name}"


def _cpu_ns(native: int) -> int | None:
    """Return the CPU time of a thread of this process; ``native`` is the system's thread number."""
    folder = _TASKS / str(native)
    with suppress(OSError, ValueError, IndexError):
        return int((folder / "schedstat").read_bytes().split()[0])
    with suppress(OSError, ValueError, IndexError):
        return _ticks(folder / "stat") * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return None


def _ended_threads_cpu_s() -> float | None:
    """Return the CPU time of ended threads: the process's time minus that of living threads.

    None where the system reports no times, and with more than 64 threads (too slow to read).
    """
    total = time.process_time_ns()  # first: time used by the reads below must not count
    with suppress(OSError):
        living = os.listdir(_TASKS)
        each = [] if len(living) > _MOST_ASKED else [_cpu_ns(int(thread)) for thread in living]
        known = [cpu for cpu in each if cpu is not None]
        if known and len(known) == len(each):
            return max(0, total - sum(known)) / 1e9
    return None


def _ticks(stat: Path, *, waited_for: bool = False) -> int:
    """Return user and system time of a ``stat`` file, in ticks; also of children ``waited_for``."""
    fields = stat.read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11 : 15 if waited_for else 13]))


def _children_cpu_s(threads: Collection[int]) -> float:
    """Return the CPU time of ended children, and of living children started by ``threads``.

    The kernel lists children by the creating thread. Reading the lists is quick; a search through
    all processes of a machine would take tens of milliseconds.
    """
    times = os.times()
    total = times.children_user + times.children_system
    per_tick = 1 / os.sysconf("SC_CLK_TCK")
    waiting = [("self", str(thread)) for thread in threads]
    found: set[str] = set()
    while waiting:
        process, thread = waiting.pop()
        with suppress(OSError, ValueError, IndexError):
            text = (_PROC / process / "task" / thread / "children").read_text()
            for child in {*text.split()} - found:
                found.add(child)
                total += _ticks(_PROC / child / "stat", waited_for=True) * per_tick
                waiting += [(child, each) for each in os.listdir(_PROC / child / "task")]
    return total
