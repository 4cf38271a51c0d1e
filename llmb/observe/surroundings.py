"""Additions to the worker's process, and beside the process, after the plugin loads (rule N2).

Evidence records threads, child processes, libraries, code, import hooks and tracers, each with an
owner. Code is recorded as Python runs the code; all else is compared with an earlier snapshot.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import CodeType, FrameType

import psutil

from llmb import clock
from llmb.config import environment
from llmb.observe import executed_code
from llmb.observe.callables import CACHED
from llmb.observe.closed_components import _mapped
from llmb.observe.exactness import owner_of
from llmb.observe.fence_census import FenceCensus, files_of, innermost
from llmb.observe.origins import UNKNOWN, CodeOrigin, Origins
from llmb.observe.python_events import PythonEvents
from llmb.observe.start_files import start_files
from llmb.plugin import NativeLibrary
from llmb.records.evidence import Presence, PresenceKind, SurroundingsEvidence
from llmb.records.redact import redact_text

#: Variables that load libraries before all others (glibc, glibc's auditing, macOS).
_PRELOADS = ("LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES")
_THREADS = Path("/proc/self/task")
#: Origins of libraries that need no mention: such libraries come and go without any plugin.
_EXPECTED = frozenset(("python", "llmb", "needed", "compiler"))
_TRACKER = "from multiprocessing.resource_tracker import"
_LONGEST = 200  # characters of a name


class ProcessCensus:
    """Snapshot of the process before any plugin code, to compare with later snapshots."""

    def __init__(self, invited: Collection[CodeType] = ()) -> None:
        """Take the snapshot (a few milliseconds), and listen from now on.

        ``invited`` is the code of the functions of llmb that call a plugin's hooks at a fence.
        """
        self._events = PythonEvents(clock.now_ns, invited)
        executed_code.keep_from_compilers(self._events.code)
        self._heard = executed_code.listen()
        self._run = len(self._heard())
        self._threads = set(threading.enumerate())
        self._identities = set(sys._current_frames())
        self._preloaded = tuple(_preloaded())
        self._processes = {process.pid for process in _children()}
        self._libraries = _mapped()
        self._hooks = _hooks()
        self._frozen, self._collecting = gc.get_freeze_count(), gc.isenabled()
        self._native = _native_threads()
        self._fences = FenceCensus(self._is_known, self._events.starter, self._events.file_of)

    def look(self, steps: int, stamp_ns: int) -> None:
        """Record threads at the fence after ``steps`` steps, stamped ``stamp_ns``."""
        self._fences.look(steps, stamp_ns)

    def evidence(
        self, module: str, distribution: str, declared: Sequence[NativeLibrary] = ()
    ) -> SurroundingsEvidence:
        """Return the additions since; ``module`` and ``distribution`` name the plugin.

        ``declared`` are the native libraries that the plugin declares.
        """
        origins = Origins(module, distribution)
        self._events.end()
        frozen = gc.get_freeze_count()
        gc.unfreeze()  # ``gc.get_referrers`` does not search frozen objects
        native, fences = _native_threads(), self._fences
        acts, omitted = self._events.acts(origins, fences.stamps, fences.steps)
        return SurroundingsEvidence(
            found=(
                *self._new_threads(origins),
                *_code(self._heard()[self._run :], origins),
                *self._new_processes(origins),
                *self._new_libraries(origins, declared),
                *self._new_hooks(origins),
            ),
            preloaded=tuple(
                _presence("library", Path(file).name, origins.of(file)) for file in self._preloaded
            ),
            frozen_objects=(self._frozen, frozen),
            collecting=(self._collecting, gc.isenabled()),
            native_threads=(self._native, native) if self._native and native else None,
            acts=acts,
            acts_omitted=omitted,
            threads=tuple(fences.threads(origins)),
            at_start=tuple(_presence("code", one.name, one) for one in start_files(origins)),
            children_cpu_s=fences.children_cpu_s,
            ended_threads_cpu_s=fences.ended_threads_cpu_s,
        )

    def know(self, thread: threading.Thread) -> None:
        """Count ``thread``, which the harness has started, as present from the beginning."""
        self._threads.add(thread)

    def _is_known(self, thread: threading.Thread | None, identity: int) -> bool:
        return thread in self._threads or (thread is None and identity in self._identities)

    def _new_threads(self, origins: Origins) -> Iterator[Presence]:
        known = {thread.ident: thread for thread in threading.enumerate()}
        for identity, frame in sys._current_frames().items():
            thread = known.get(identity)
            if self._is_known(thread, identity):
                continue
            place = _of_thread(thread, files_of(thread, frame, self._events.file_of), origins)
            name = f"{thread.name if thread else 'unnamed'} in {innermost(frame)}"
            yield _presence("thread", name, place)

    def _new_processes(self, origins: Origins) -> Iterator[Presence]:
        places: dict[int, CodeOrigin] = {}
        own = _command(psutil.Process())
        for process in _children():  # parents before children
            if process.pid in self._processes:
                continue
            command = _command(process)
            place = places.get(_parent(process)) or _of_command(command, own, origins)
            places[process.pid] = place
            yield _presence("process", " ".join(command[:3]) or f"process {process.pid}", place)

    def _new_libraries(
        self, origins: Origins, declared: Sequence[NativeLibrary]
    ) -> Iterator[Presence]:
        known = {Path(library.path).resolve() for library in declared}
        for file in sorted(_mapped() - self._libraries):
            place = origins.of(str(file))
            if file.resolve() in known:
                place = CodeOrigin("plugin", None, file.name)
            if place.origin not in _EXPECTED:
                yield _presence("library", place.name, place)

    def _new_hooks(self, origins: Origins) -> Iterator[Presence]:
        before = {(kind, id(hook)) for kind, hook in self._hooks}
        for kind, hook in _hooks():
            if (kind, id(hook)) not in before:
                yield _presence(kind, _named(hook), _of_object(hook, origins))


def _presence(kind: PresenceKind, name: str, place: CodeOrigin) -> Presence:
    return Presence(
        kind=kind,
        name=redact_text(name)[:_LONGEST],
        origin=place.origin,
        distribution=place.distribution,
    )


def _preloaded() -> Iterator[str]:
    variables = environment()
    for variable in _PRELOADS:
        yield from filter(None, re.split(r"[:\s]+", variables.get(variable, "")))


def _native_threads() -> int | None:
    return len(list(_THREADS.iterdir())) if _THREADS.is_dir() else None


# -- code -----------------------------------------------------------------------------------


def _code(run: Sequence[CodeType], origins: Origins) -> Iterator[Presence]:
    """Yield the files of code that no package owns; code without a file was generated."""
    for file in dict.fromkeys(code.co_filename for code in run):
        if Path(file).is_absolute() and origins.of(file).origin == "unknown":
            yield _presence("code", file, origins.of(file))


# -- threads --------------------------------------------------------------------------------


def _of_thread(
    thread: threading.Thread | None, files: Iterable[str], origins: Origins
) -> CodeOrigin:
    """Return the origin of a thread's code; for an idle pool thread, the origin of the pool."""
    for file in files:
        if origins.of(file).origin != "python":
            return origins.of(file)
    for executor in _executors(getattr(thread, "_args", ())):
        for module in sorted(_holders(executor)):
            if origins.of_module(module).origin != "python":
                return origins.of_module(module)
    return UNKNOWN


def _executors(arguments: Iterable[object] | None) -> Iterator[Executor]:
    """Yield the executor that an idle thread of a pool waits on."""
    for argument in arguments or ():
        value = argument() if isinstance(argument, weakref.ref) else argument
        if isinstance(value, Executor):
            yield value


def _holders(executor: Executor) -> set[str]:
    """Return the modules that keep ``executor``: as a global, in a cache, or in an object."""
    direct = [holder for holder in gc.get_referrers(executor) if not _is_passing(holder)]
    bare = [holder for holder in direct if type(holder) is dict and "__name__" not in holder]
    found = set()
    for holder in [*direct, *(gc.get_referrers(*bare) if bare else ())]:
        if type(holder) is dict:
            found.add(str(holder.get("__name__", "")))
        elif isinstance(holder, CACHED):
            found.add(holder.__wrapped__.__module__)
        elif not _is_passing(holder):
            found.add(type(holder).__module__)
    return found & set(sys.modules)


def _is_passing(holder: object) -> bool:
    return isinstance(holder, (FrameType, list, tuple))


# -- processes ------------------------------------------------------------------------------


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # the process has just ended
        return []


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def _of_command(command: Sequence[str], own: Sequence[str], origins: Origins) -> CodeOrigin:
    """Return the origin of a process's script; unknown for a program that is no script."""
    if list(command) == list(own):  # a fork of the worker itself
        return UNKNOWN
    if any(part.startswith(_TRACKER) for part in command):
        return CodeOrigin("python", None, "")
    scripts = (part for part in command[1:] if part.endswith(".py") and Path(part).is_absolute())
    return next((origins.of(script) for script in scripts), UNKNOWN)


# -- hooks ----------------------------------------------------------------------------------


def _hooks() -> list[tuple[PresenceKind, object]]:
    """Return everything that Python calls by itself, such as on imports or for each line."""
    tracers = [sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    if monitoring is not None:
        tracers += [monitoring.get_tool(number) for number in range(6)]
    return [
        *(("import hook", finder) for finder in sys.meta_path),
        *(("import hook", hook) for hook in sys.path_hooks),
        *(("gc callback", callback) for callback in gc.callbacks),
        *(("tracer", tracer) for tracer in tracers if tracer is not None),
    ]


def _named(hook: object) -> str:
    if isinstance(hook, str):  # a tool of sys.monitoring
        return hook
    kind = hook if hasattr(hook, "__qualname__") else type(hook)
    return f"{kind.__module__}.{kind.__qualname__}"


def _of_object(hook: object, origins: Origins) -> CodeOrigin:
    if isinstance(hook, str):
        return CodeOrigin("unknown", None, hook)
    return owner_of(hook, origins)
