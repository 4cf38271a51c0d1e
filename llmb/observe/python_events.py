"""Acts of plugin code that Python reports as audit events: forks, threads, tracers, frames (N2).

An audit hook (PEP 578) receives the events; no code can remove an audit hook. Each act is kept with
its line of code and the time. The owner of the code (plugin, torch ...) is found at the end of the
run.
"""

from __future__ import annotations

import importlib._bootstrap as bootstrap
import importlib._bootstrap_external as loaders
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
from llmb.observe.executed_code import parts_of
from llmb.observe.origins import Origins
from llmb.records.evidence import Act

THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
PROCESSES = frozenset(
    {
        *("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system"),
        *("pty.spawn", "subprocess.Popen"),
    }
)
#: An audit hook sees every look-up of an optimizer's state (event ``builtins.id``).
TRACERS = frozenset(
    {
        *("sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
        "sys.addaudithook",
    }
)
#: Code that reads the frames of callers learns which function called, and when.
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
#: A kernel file that gives access to the memory of a process, such as ``/proc/self/mem``.
MEMORY = "open of a process's memory"
_ATTRIBUTE, _OPEN, _GETFRAME = "object.__getattr__", "open", "sys._getframe"
#: Events with code that is about to run, or to become a function.
_MAKING = frozenset({"exec", "function.__new__", "object.__setattr__"})
#: Functions of Python that run the code of an imported module, and the loaders with text or code.
_IMPORTING = (
    bootstrap._call_with_frames_removed.__code__,  # type: ignore[attr-defined]
    loaders._LoaderBasics.exec_module.__code__,  # type: ignore[attr-defined]
)
_LOADERS = (loaders.SourceFileLoader, loaders.SourcelessFileLoader)
#: Identity of an object, without the audit event of ``id``.
_which = object.__hash__
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_WATCHED = THREADS | PROCESSES | TRACERS | FRAMES | OBJECTS | NATIVE | _MAKING
_WATCHED |= {_ATTRIBUTE, _OPEN}

#: The function of torch that gives the names in a frame to its caller.
_TELLING = "createResolutionCallbackFromFrame"
#: Limits: lines of code kept per file, and files.
_LINES, _FILES = 50, 500
#: Times kept per line of code: the first 16 and the last 16.
_TIMES = 16
#: Owner of a frame. Pass: judge the caller's frame instead. Other: never judged. Kept: judged.
_PASS, _OTHER, _KEPT = 0, 1, 2


def _below(*folders: str | Path) -> tuple[str, ...]:
    """Return path prefixes of files in ``folders``, both with and without links resolved."""
    either = (name for each in folders for name in (str(each), os.path.realpath(each)))
    return tuple(f"{folder}{os.sep}" for folder in dict.fromkeys(either))


_TORCH = _below(Path(torch.__file__).parent)
_LLMB = _below(Path(llmb.__file__).parent)
#: Parts of torch that start threads and processes for the calling code.
_TORCH_ON_BEHALF = _below(
    *(Path(torch.__file__).parent / part for part in ("multiprocessing", "utils/data"))
)
_PYTHON = _below(sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGES = ("site-packages", "dist-packages")
#: The only modules of Python that read frames on behalf of a caller. Counterexamples: a logger
#: reads the frame of its direct caller, and a named tuple reads the name of the defining module.
_LOOKING = tuple(f"{os.sep}{name}.py" for name in ("inspect", "traceback"))
#: Functions of Python that read a frame and keep the frame to themselves: for the name of a module,
#: for a line of a log. All others may give their caller the frame. Examples:
#: ``logging.currentframe``, ``bdb.Bdb.get_stack``.
_NAMING = frozenset(
    {
        *("namedtuple", "findCaller", "formatException", "_caller", "_create_", "warn"),
        *("make_dataclass", "_next_external_frame", "_text_encoding", "_make_nmtuple"),
        *("NewType", "TypeVar"),
    }
)


@dataclass
class _LineSeen:
    """Acts of a single line of code: count and times (nanoseconds of the worker's clock)."""

    count: int = 0
    first: list[int] = field(default_factory=list)
    last: deque[int] = field(default_factory=lambda: deque(maxlen=_TIMES))

    def add(self, now: int) -> None:
        self.count += 1
        (self.first if len(self.first) < _TIMES else self.last).append(now)

    def blocks(self, stamps: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
        """Return the blocks between fences with an act; a block is named by the steps before.

        ``stamps`` are the times (ns) of the fences, ``steps`` the steps done at each fence. The
        last stamp ends the stream; later acts are left out. Dropped times lie between the first
        times and the last times: every block in between is named. Example: fences after steps 0
        and 10 and an act between the two fences give ``(0,)``.
        """
        found = {bisect_right(stamps, at) for at in (*self.first, *self.last)}
        if self.count > len(self.first) + len(self.last):
            begin, end = self.first[-1], self.last[0]
            found |= {*range(bisect_right(stamps, begin), bisect_right(stamps, end) + 1)}
        found -= {len(stamps)}
        return tuple(dict.fromkeys(steps[n - 1] if n else BEFORE for n in sorted(found)))


#: Stands for a number of steps: before the first fence.
BEFORE = -1


class _Makers:
    """The files of code, and of code that other code has made: the file of the maker.

    Anybody can name any file when compiling a text. Example: a plugin compiles a function of its
    own under the name of a file of torch, or as ``<string>``, and lets torch call the function.
    """

    __slots__ = ("_made", "_whose")

    def __init__(self, others: FrameType | None) -> None:
        """Begin; ``others`` is the innermost frame of programs that belong to no plugin."""
        #: File -> owner.
        self._whose: dict[str, int] = {}
        #: Identity of code -> the code itself (kept: no other code takes its identity), and a file.
        self._made: dict[int, tuple[CodeType, str]] = {}
        while others is not None:
            if others.f_code.co_filename[:1] != "<":
                self._whose[others.f_code.co_filename] = _OTHER
            others = others.f_back

    def hear(self, code: object, frame: FrameType | None) -> None:
        """Note the ``code`` that ``frame`` runs or makes a function of, if its file may be a lie.

        The code of an imported module has its own file. Code inside with a different file does not
        come from a text.
        """
        if type(code) is not CodeType:
            return
        if _is_import(frame):
            own = file = code.co_filename
        else:
            maker = self.judged(frame, looks=False)
            if maker is None:
                return
            own, file = "", self.file_of(maker.f_code)
        for part in parts_of(code):
            if part.co_filename != own:
                self._made.setdefault(_which(part), (part, file))

    def file_of(self, code: CodeType) -> str:
        """Return the file of the code's maker, or the file that the code names."""
        made = self._made.get(_which(code))
        return code.co_filename if made is None else made[1]

    def judged(self, frame: FrameType | None, *, looks: bool) -> FrameType | None:
        """Return the frame to blame for an act: the nearest frame outside Python's own code.

        None if the nearest such frame is torch's or llmb's. An act that ``looks`` at frames is
        charged to the caller of ``inspect`` or ``traceback``; other modules of Python end the
        search with None. The line of made code is a line of the maker, if the maker is the caller.
        """
        made: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            if made is None and _which(code) in self._made:
                made, frame = frame, frame.f_back
                continue
            kind = self._kind(code)
            if kind == _KEPT:
                is_makers = made is None or self.file_of(made.f_code) == self.file_of(code)
                return frame if is_makers else made
            if kind == _OTHER and not (looks and code.co_name == _TELLING):
                return made
            if looks and _keeps(code):
                return made
            frame = frame.f_back
        return made

    def are_pythons(self, frame: FrameType | None) -> bool:
        """Tell whether only Python's own code is on the stack: the first lines of a new thread."""
        while frame is not None:
            if self._kind(frame.f_code) != _PASS:
                return False
            frame = frame.f_back
        return True

    def are_invited(self, frame: FrameType | None, invitations: Collection[int]) -> bool:
        """Tell whether llmb asked for the act of ``frame`` through a function in ``invitations``.

        If plugin code calls an invited function itself, the act is not invited.
        """
        invited = False
        while frame is not None:
            invited = invited or id(frame.f_code) in invitations
            if invited and self._kind(frame.f_code) == _KEPT:
                return False
            frame = frame.f_back
        return invited

    def _kind(self, code: CodeType) -> int:
        file = self.file_of(code)
        kind = self._whose.get(file)
        if kind is None:
            kind = self._whose[file] = _kind(file)
        return kind


class PythonEvents:
    """Record acts of plugin code that Python reports, from now on until ``end``."""

    __slots__ = ("_code", "_lines", "_makers", "_omitted", "_over", "_starters")

    def __init__(self, now: Callable[[], int], invited: Collection[CodeType] = ()) -> None:
        """Listen; ``now`` gives the time in nanoseconds, on the clock of the fences.

        ``invited`` is the code of the functions of llmb that call a plugin's hooks at a fence.
        """
        self._lines: dict[str, dict[tuple[str, int, str, bool], _LineSeen]] = {}
        self._omitted: dict[str, int] = {}
        self._starters: weakref.WeakKeyDictionary[threading.Thread, str] = (
            weakref.WeakKeyDictionary()
        )
        self._over: set[str] = set()
        self._makers = _Makers(sys._getframe(1))
        self._code = self._listen(now, invited)

    def _listen(self, now: Callable[[], int], invited: Collection[CodeType]) -> CodeType:
        """Add the audit hook; the hook writes acts into the fields of this object."""
        lines, omitted, starters, over = self._lines, self._omitted, self._starters, self._over
        makers = self._makers
        busy: set[int] = set()  # threads inside the hook: acts of the hook itself are ignored
        invitations = frozenset(map(id, invited))
        # Own references: replacing the functions of ``sys`` or ``threading`` has no effect here.
        getframe, ident = sys._getframe, threading.get_ident
        watched, making, thread_class = _WATCHED, _MAKING, threading.Thread

        def hear(event: str, arguments: tuple[Any, ...]) -> None:
            if event not in watched or event in over:
                return
            if event in making:
                with suppress(Exception):  # an exception would abort the audited operation
                    makers.hear(arguments[-1], getframe(0).f_back)
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
                return  # a frame look-up of another ``PythonEvents`` hook
            busy.add(me)
            try:
                looks = event in FRAMES or event == _ATTRIBUTE
                frame = makers.judged(getframe(0).f_back, looks=looks)
                if frame is not None:
                    note(event, arguments, frame)
                elif event in TRACERS and makers.are_pythons(getframe(0).f_back):
                    keep("", event, 0, "?", False)
            except Exception:  # an exception would abort the audited operation
                return
            finally:
                busy.discard(me)

        def note(event: str, arguments: tuple[Any, ...], frame: FrameType) -> None:
            by, file = frame.f_code, makers.file_of(frame.f_code)
            if event in THREADS and type(arguments[0]) is MethodType:
                thread: Any = arguments[0].__self__
                if thread_class in type(thread).__mro__:
                    with suppress(TypeError):
                        starters[thread] = file
            if event == _ATTRIBUTE:
                event = f"read of {arguments[1]}"
            elif event == _OPEN:
                event = MEMORY
            by_invitation = makers.are_invited(frame, invitations)
            keep(file, event, frame.f_lineno, by.co_name, by_invitation)

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

    @property
    def code(self) -> CodeType:
        """The code of the audit hook: compilers must leave the code alone."""
        return self._code

    def file_of(self, code: CodeType) -> str:
        """Return the file of ``code``; of code that other code has made, the file of the maker."""
        return self._makers.file_of(code)

    def end(self) -> None:
        """Stop recording events."""
        self._over |= _WATCHED

    def starter(self, thread: threading.Thread) -> str | None:
        """Return the file of the code that started ``thread``; None if no judged code did."""
        return self._starters.get(thread)

    def acts(
        self, origins: Origins, stamps: Sequence[int], steps: Sequence[int]
    ) -> tuple[tuple[Act, ...], int]:
        """Return acts of code of the plugin or of unknown origin before the last of ``stamps``.

        ``stamps`` (ns) are the times of the fences after ``steps`` steps; the last stamp is the
        end. The second value counts acts beyond the limits, which are not kept.
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


def _kind(file: str) -> int:
    if file[:1] == "<":  # made from a string, such as "<string>": judge the caller
        return _PASS
    if file.startswith(_LLMB):
        return _OTHER
    if file.startswith(_TORCH):
        return _PASS if file.startswith(_TORCH_ON_BEHALF) else _OTHER
    if file.startswith(_PYTHON) and not any(part in file for part in _PACKAGES):
        return _PASS
    return _KEPT


def _keeps(code: CodeType) -> bool:
    """Tell whether a function of Python that read a frame keeps the frame to itself."""
    file = code.co_filename
    return file[:1] != "<" and not file.endswith(_LOOKING) and code.co_name in _NAMING


def _is_import(frame: FrameType | None) -> bool:
    """Tell whether ``frame`` runs the code of a module for a loader of Python's own."""
    above = None if frame is None else frame.f_back
    return (
        above is not None
        and (frame.f_code, above.f_code) == _IMPORTING  # type: ignore[union-attr]
        and type(above.f_locals.get("self")) in _LOADERS
    )


def _is_memory(path: object) -> bool:
    """Tell whether ``path`` is the memory of a process, such as ``/proc/self/mem``.

    A relative path counts by its name alone: the event names no folder that it is relative to.
    Nor may a link hide the file. Example: ``os.open("mem", 0, dir_fd=...)``.
    """
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if not isinstance(path, str):
        return False
    if os.path.basename(path) != "mem" and not os.path.islink(path):
        return False
    if not os.path.isabs(path) and os.path.basename(path) == "mem":
        return True
    real = os.path.realpath(path)
    return real.startswith("/proc/") and real.endswith("/mem")
