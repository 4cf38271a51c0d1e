"""Acts of plugin code that Python tells of as they happen: forks, threads, tracers, frames (N2).

An audit hook (PEP 578) hears of them; nobody can take it away again. What it hears is kept with the
line of code that did it, and with the time. Whose the code is is looked up at the end of the run.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any

import torch

import llmb
from llmb.observe.origins import Origins
from llmb.records.evidence import Act

THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
PROCESSES = frozenset(
    {
        *("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system"),
        *("pty.spawn", "subprocess.Popen"),
    }
)
#: An audit hook hears of every look-up of an optimizer's state (``builtins.id``).
TRACERS = frozenset(
    {
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
        "sys.addaudithook",
    }
)
#: Who reads the frames of its callers knows who asks, and when.
FRAMES = frozenset(
    {
        *("sys._getframe", "sys._getframemodulename"),
        *("sys._current_frames", "sys._current_exceptions"),
    }
)
OBJECTS = frozenset({"gc.get_objects", "gc.get_referrers", "gc.get_referents"})
NATIVE = frozenset(
    {
        *("ctypes.dlopen", "ctypes.dlsym", "ctypes.dlsym/handle", "ctypes.call_function"),
        *("ctypes.addressof", "ctypes.cdata", "ctypes.cdata/buffer", "ctypes.string_at"),
        *("ctypes.wstring_at", "ctypes.memoryview_at", "ctypes.PyObj_FromPtr"),
    }
)
#: A file of the kernel's through which the memory of a process is read.
MEMORY = "open of a process's memory"
_ATTRIBUTE, _OPEN, _GETFRAME = "object.__getattr__", "open", "sys._getframe"
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_WATCHED = THREADS | PROCESSES | TRACERS | FRAMES | OBJECTS | NATIVE | {_ATTRIBUTE, _OPEN}

#: Lines of code that are kept for each file, and files.
_LINES, _FILES = 50, 500
#: Times that are kept of each line: the first and the last.
_TIMES = 16
#: Whose a frame is: "pass": the one that called it is asked; "other": nobody's that is judged.
_PASS, _OTHER, _KEPT = 0, 1, 2


def _below(*folders: str | Path) -> tuple[str, ...]:
    """Return how the names of files in ``folders`` begin, links followed or not."""
    either = (name for each in folders for name in (str(each), os.path.realpath(each)))
    return tuple(f"{folder}{os.sep}" for folder in dict.fromkeys(either))


_TORCH = _below(Path(torch.__file__).parent)
_LLMB = _below(Path(llmb.__file__).parent)
#: Parts of torch that start threads and processes for the code that calls them.
_TORCH_ON_BEHALF = _below(
    *(Path(torch.__file__).parent / part for part in ("multiprocessing", "utils/data"))
)
_PYTHON = _below(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = ("site-packages", "dist-packages")
#: Modules of Python's that look at frames for their caller, and no others: a logger looks at its
#: own caller's frame, and a named tuple at the name of the module it is made in.
_LOOKING = tuple(f"{os.sep}{name}.py" for name in ("inspect", "traceback"))


@dataclass
class _LineSeen:
    """What one line of code did: how often, and when (nanoseconds of the worker's clock)."""

    count: int = 0
    first: list[int] = field(default_factory=list)
    last: deque[int] = field(default_factory=lambda: deque(maxlen=_TIMES))

    def add(self, now: int) -> None:
        self.count += 1
        (self.first if len(self.first) < _TIMES else self.last).append(now)

    def blocks(self, stamps: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
        """Return the blocks between fences in which it did it, each by the steps before it.

        ``stamps`` are those of the fences, after ``steps`` steps; the last ends the stream, and
        what comes after it is left out. Times that were not kept lie between the first and the
        last: every block between them is named.
        """
        found = {bisect_right(stamps, at) for at in (*self.first, *self.last)}
        if self.count > len(self.first) + len(self.last):
            begin, end = self.first[-1], self.last[0]
            found |= {*range(bisect_right(stamps, begin), bisect_right(stamps, end) + 1)}
        found -= {len(stamps)}
        return tuple(dict.fromkeys(steps[n - 1] if n else BEFORE for n in sorted(found)))


#: Instead of a number of steps: before the first fence.
BEFORE = -1


class PythonEvents:
    """What plugin code has Python do, from now on until ``close``."""

    __slots__ = ("_code", "_lines", "_omitted", "_over", "_starters")

    def __init__(self, now: Callable[[], int], invited: Collection[CodeType] = ()) -> None:
        """Listen; ``now`` gives the time in nanoseconds, on the clock of the fences.

        ``invited`` is the code of those functions of llmb that call a plugin's hooks at a fence.
        """
        self._lines: dict[str, dict[tuple[str, int, str, bool], _LineSeen]] = {}
        self._omitted: dict[str, int] = {}
        self._starters: weakref.WeakKeyDictionary[threading.Thread, str] = (
            weakref.WeakKeyDictionary()
        )
        self._over: set[str] = set()
        heard = _Heard(self._lines, self._omitted, self._starters, self._over)
        self._code = _listen(heard, now, invited)

    @property
    def code(self) -> CodeType:
        """Return the code that hears of every event: compilers must leave it alone."""
        return self._code

    def end(self) -> None:
        """Hear of nothing more."""
        self._over |= _WATCHED

    def starter(self, thread: threading.Thread) -> str | None:
        """Return the file of the code that started ``thread``; None if nobody's that is judged."""
        return self._starters.get(thread)

    def acts(
        self, origins: Origins, stamps: Sequence[int], steps: Sequence[int]
    ) -> tuple[tuple[Act, ...], int]:
        """Return what code of the plugin or of nobody did before the last of ``stamps``.

        ``stamps`` (ns) are those of the fences after ``steps`` steps, the last that of the end.
        Beside it how many acts more there were than are kept.
        """
        found, omitted = [], 0
        for file, lines in [*self._lines.items()]:
            origin = origins.of(file)
            if origin.origin not in ("plugin", "unknown", "other"):
                continue
            omitted += self._omitted.get(file, 0)
            for (event, line, function, invited), seen in [*lines.items()]:
                if blocks := seen.blocks(stamps, steps):
                    found.append(
                        Act(
                            event=event,
                            place=f"{origin.name}:{line} in {function}"[:500],
                            origin=origin.origin,
                            distribution=origin.distribution,
                            count=seen.count,
                            blocks=blocks,
                            invited=invited,
                        )
                    )
        return tuple(found), omitted + self._omitted.get("", 0)


@dataclass(frozen=True)
class _Heard:
    """What a hook writes, and the events that it no longer listens to."""

    lines: dict[str, dict[tuple[str, int, str, bool], _LineSeen]]
    omitted: dict[str, int]
    starters: weakref.WeakKeyDictionary[threading.Thread, str]
    over: set[str]


def _listen(heard: _Heard, now: Callable[[], int], invited: Collection[CodeType]) -> CodeType:
    """Add the audit hook; what it hears goes into ``heard``."""
    lines, omitted, starters, over = heard.lines, heard.omitted, heard.starters, heard.over
    whose: dict[str, int] = {}
    busy: set[int] = set()  # threads inside the hook: its own acts are nobody's
    invitations = frozenset(map(id, invited))
    # Of its own: who replaces these modules' functions does not blind it.
    getframe, ident = sys._getframe, threading.get_ident
    watched, thread_class = _WATCHED, threading.Thread
    # The programs that this process was started by are no plugin's.
    below: FrameType | None = getframe(1)
    while below is not None:
        if below.f_code.co_filename[:1] != "<":
            whose[below.f_code.co_filename] = _OTHER
        below = below.f_back

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in watched or event in over:
            return
        if event == _ATTRIBUTE:
            if arguments[1] not in _FRAME_ATTRIBUTES:
                return
        elif event == _OPEN and not _is_memory(arguments[0]):
            return
        me = ident()
        if me in busy:
            return
        if event == _GETFRAME and arguments and arguments[0].f_code is code:
            return  # another hook's own question
        busy.add(me)
        try:
            frame = _judged(getframe(0).f_back, whose, looks=event in FRAMES or event == _ATTRIBUTE)
            if frame is not None:
                note(event, arguments, frame)
            elif event in TRACERS and _is_pythons(getframe(0).f_back, whose):
                keep("", event, 0, "?", False)
        except Exception:  # it would stop what was heard of
            return
        finally:
            busy.discard(me)

    def note(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
        by = frame.f_code
        if event in THREADS and type(arguments[0]) is MethodType:
            thread: Any = arguments[0].__self__
            if thread_class in type(thread).__mro__:
                with suppress(TypeError):
                    starters[thread] = by.co_filename
        if event == _ATTRIBUTE:
            event = f"read of {arguments[1]}"
        elif event == _OPEN:
            event = MEMORY
        by_invitation = _is_invited(frame, invitations, whose)
        keep(by.co_filename, event, frame.f_lineno, by.co_name, by_invitation)

    def keep(file: str, event: str, line: int, function: str, by_invitation: bool) -> None:
        if file not in lines and len(lines) >= _FILES:
            omitted[""] = omitted.get("", 0) + 1
            return
        of_file = lines.setdefault(file, {})
        key = (event, line, function, by_invitation)
        if key not in of_file and len(of_file) >= _LINES:
            omitted[file] = omitted.get(file, 0) + 1
            return
        of_file.setdefault(key, _LineSeen()).add(now())

    code = hear.__code__
    sys.addaudithook(hear)
    return code


def _judged(frame: FrameType | None, whose: dict[str, int], looks: bool) -> FrameType | None:
    """Return the frame that an act is told of: the nearest that is not Python's.

    None where that one is torch's or llmb's. An act that ``looks`` at frames is the caller's of
    ``inspect``, and no other module of Python passes it on.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _known(file, whose)
        if kind == _KEPT:
            return frame
        if kind == _OTHER or (looks and file[:1] != "<" and not file.endswith(_LOOKING)):
            return None
        frame = frame.f_back
    return None


def _is_pythons(frame: FrameType | None, whose: dict[str, int]) -> bool:
    """Tell whether nobody but Python's own code is on the stack: a new thread's first lines."""
    while frame is not None:
        if whose.get(frame.f_code.co_filename, _OTHER) != _PASS:
            return False
        frame = frame.f_back
    return True


def _is_invited(
    frame: FrameType | None, invitations: Collection[int], whose: dict[str, int]
) -> bool:
    """Tell whether llmb asked for what ``frame`` does, through a function that ``invitations`` has.

    Code of the plugin that calls such a function itself is not invited.
    """
    invited = False
    while frame is not None:
        invited = invited or id(frame.f_code) in invitations
        if invited and _known(frame.f_code.co_filename, whose) == _KEPT:
            return False
        frame = frame.f_back
    return invited


def _known(file: str, whose: dict[str, int]) -> int:
    kind = whose.get(file)
    if kind is None:
        kind = whose[file] = _kind(file)
    return kind


def _kind(file: str) -> int:
    if file[:1] == "<":  # made from a string: who called it is asked
        return _PASS
    if file.startswith(_LLMB):
        return _OTHER
    if file.startswith(_TORCH):
        return _PASS if file.startswith(_TORCH_ON_BEHALF) else _OTHER
    if file.startswith(_PYTHON) and not any(part in file for part in _PACKAGES):
        return _PASS
    return _KEPT


def _is_memory(path: object) -> bool:
    """Tell whether ``path`` is that of another process's memory, or of the worker's own."""
    if isinstance(path, bytes):
        return path.startswith(b"/proc/") and path.endswith(b"/mem")
    return isinstance(path, str) and path.startswith("/proc/") and path.endswith("/mem")
