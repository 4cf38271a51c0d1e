"""The table of early ends of a command: kept files and exit code, by phase and event.

A run is in one ``RunPhase`` at a time. An ``Event`` ends the run, or costs one part of the run:
``ending`` decides; docs/architecture.md shows the table. Only this module handles signals.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from types import FrameType

from llmb import clock
from llmb.errors import (
    INTERRUPTED_EXIT_CODE,
    LlmbError,
    NotEnoughMemoryError,
    NotEnoughSpaceError,
    RunFailedError,
    UnavailableError,
)

#: Signals that ask a command to end: Ctrl-C, ``kill``, a closed terminal. SIGUSR1 is the early
#: warning of a scheduler (``sbatch --signal=USR1@120``): the present step may end.
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
WARNING = "SIGUSR1"
#: Errors of a write that finds no room.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class RunPhase(str, Enum):
    """The present work of a run, in words for the user."""

    ASKING = "while plugins were asked"
    CEILINGS = "while the device's ceiling was measured"
    WARM_UP = "before the timed window"
    WINDOW = "in the timed window"
    EVIDENCE = "while the worker wrote evidence"
    HONEST_RUN = "in the honest run"
    REFERENCE = "in the reference run"
    JUDGING = "while the run was judged"
    PACKAGING = "while a bundle was written"


class Event(str, Enum):
    """An event that can end a run early."""

    SIGNAL = "a signal"
    WARNING = "an early warning (SIGUSR1)"
    CHILD_KILLED = "a process of the run is killed"
    CHILD_HUNG = "a process of the run hangs"
    NO_MEMORY = "memory is refused"
    NO_SPACE = "the disk is full"
    NO_DIRECTORY = "the run directory is removed"
    CLOCK_STEPPED = "the clock is set"


class Kept(str, Enum):
    """The kept part of a run that ended early."""

    NOTHING = "nothing"
    #: The run directory; log.txt gives the reason for the missing record.
    LOG = "log"
    #: A record with the timing; rules that were not judged are not observed.
    TIMING = "timing"
    #: All files of a complete run.
    ALL = "all"


@dataclass(frozen=True)
class Ending:
    """The effect of an event in a phase."""

    kept: Kept
    #: None: the run goes on, without the failed part.
    exit_code: int | None
    #: True: full weights stay on the disk, to finish the audit later.
    keeps_weights: bool = False


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to end; as text: one line for the user."""

    def __init__(self, by: str, line: str = "") -> None:
        """``by`` is the name of the signal; ``line`` is a longer text for the user, if any."""
        super().__init__(line or f"interrupted by {by}")
        self.by = by


_BEFORE = (RunPhase.WARM_UP, RunPhase.WINDOW)
_AFTER = (RunPhase.EVIDENCE, RunPhase.HONEST_RUN, RunPhase.REFERENCE)
#: Events of a failed process.
_OF_CHILD = (Event.CHILD_KILLED, Event.CHILD_HUNG, Event.NO_MEMORY)
_FAILED, _STOPPED = RunFailedError.exit_code, INTERRUPTED_EXIT_CODE


def ending(phase: RunPhase, event: Event) -> Ending:
    """Return the effect of ``event`` in ``phase``."""
    return _TABLE[phase, event]


def _table() -> Iterator[tuple[tuple[RunPhase, Event], Ending]]:
    for phase in RunPhase:
        yield (phase, Event.CLOCK_STEPPED), Ending(Kept.ALL, None)  # nothing is timed by that clock
        for event in (Event.SIGNAL, Event.WARNING):
            yield (phase, event), Ending(_kept_of(phase), _STOPPED, phase in _AFTER)
        for event in _OF_CHILD:
            yield (phase, event), _of_child(phase, event)
        gone = Kept.LOG if phase is RunPhase.CEILINGS else _kept_of(phase)
        # A record that meets a full disk during the write is not kept.
        full = Kept.LOG if phase is RunPhase.JUDGING else gone
        yield (phase, Event.NO_SPACE), Ending(full, _FAILED)
        yield (phase, Event.NO_DIRECTORY), Ending(Kept.NOTHING, _FAILED)


def _kept_of(phase: RunPhase) -> Kept:
    """Return the kept part of a run that stops in ``phase``."""
    if phase in _AFTER:
        return Kept.TIMING
    if phase is RunPhase.JUDGING:  # a few seconds, which a signal waits for
        return Kept.ALL
    return Kept.NOTHING if phase in (RunPhase.ASKING, RunPhase.PACKAGING) else Kept.LOG


def _of_child(phase: RunPhase, event: Event) -> Ending:
    if phase is RunPhase.ASKING:
        memory = event is Event.NO_MEMORY
        return Ending(Kept.NOTHING, _FAILED if memory else UnavailableError.exit_code)
    if phase in _BEFORE:
        return Ending(Kept.LOG, _FAILED)
    if phase in _AFTER:
        return Ending(Kept.TIMING, None)
    return Ending(Kept.ALL, None)  # a ceiling is not needed; nothing else has a process


_TABLE = dict(_table())


def event_of(error: BaseException) -> Event:
    """Return the event of ``error``.

    An error unknown to llmb, such as a plugin's own error, counts as a killed process.
    """
    if isinstance(error, Interrupted) and error.by == WARNING:
        return Event.WARNING
    if isinstance(error, KeyboardInterrupt):
        return Event.SIGNAL
    if isinstance(error, NotEnoughMemoryError):
        return Event.NO_MEMORY
    if isinstance(error, NotEnoughSpaceError) or is_out_of_space(error):
        return Event.NO_SPACE
    if isinstance(error, FileNotFoundError):
        return Event.NO_DIRECTORY
    return Event.CHILD_KILLED


def is_out_of_space(error: BaseException) -> bool:
    """Tell whether ``error`` says that a disk, or a quota, is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def goes_on(phase: RunPhase, error: LlmbError) -> bool:
    """Tell whether a run in ``phase`` goes on without the part that raised ``error``."""
    return ending(phase, event_of(error)).exit_code is None


@dataclass
class RunProgress:
    """The present phase of a run, updated by the code that does the work."""

    phase: RunPhase = RunPhase.ASKING
    #: Progress within the phase, such as "after 12 of 50 timed steps"; empty if unknown.
    done: str = ""

    def enter(self, phase: RunPhase, done: str = "") -> None:
        """Note the begin of ``phase``, or the progress within the phase."""
        self.phase, self.done = phase, done

    @property
    def text(self) -> str:
        """The phase and the progress, as the end of a sentence."""
        return f"{self.phase.value} ({self.done})" if self.done else self.phase.value


#: A second signal within 5 seconds counts as a repetition of the first: schedulers send a signal to
#: each process of a job, and a launcher sends another to each rank.
_TWICE_NS = 5 * 10**9


class _Signals:
    """Signals that the handlers of this process have noted and not yet raised."""

    def __init__(self) -> None:
        self.held: frozenset[str] = frozenset()
        self.noted: Interrupted | None = None
        self.raised_ns = -_TWICE_NS


_signals = _Signals()


def listen() -> None:
    """Let signals end this command as ``Interrupted``; for the main thread of a command line.

    An ignored signal stays ignored: ``nohup`` ignores SIGHUP on purpose. The early warning is an
    exception: torchrun would end at SIGUSR1, so job files start torchrun, and hence the ranks, with
    SIGUSR1 ignored.
    """
    for name in (*STOPPING, WARNING):
        number = getattr(signal, name, None)  # Windows has two of them
        ignored = number is not None and signal.getsignal(number) is signal.SIG_IGN
        if number is not None and (name == WARNING or not ignored):
            signal.signal(number, _take)


def heed_interrupts() -> None:
    """Let SIGINT act although the process was started with SIGINT ignored; before ``listen``.

    Example: a thread of a notebook calls ``llmb.run``, and an idle notebook ignores SIGINT.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def stop_listening() -> None:
    """Ignore signals from here on: the command is over, and Python takes a while to leave."""
    for name in (*STOPPING, WARNING):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is _take:
            signal.signal(number, signal.SIG_IGN)


def _take(number: int, frame: FrameType | None) -> None:
    name = signal.Signals(number).name
    if name in _signals.held:
        _signals.noted = _signals.noted or Interrupted(name)
    elif clock.now_ns() - _signals.raised_ns >= _TWICE_NS:
        _signals.raised_ns = clock.now_ns()
        raise Interrupted(name)


@contextmanager
def held(*names: str, raises: bool = True) -> Iterator[None]:
    """Note signals of ``names`` (all, without any) inside, and raise the first at the end.

    With ``raises=False`` the caller has to call ``raise_noted`` later.
    """
    before = _signals.held
    _signals.held = before | frozenset(names or (*STOPPING, WARNING))
    try:
        yield
    finally:
        _signals.held = before
    if raises and _signals.noted is not None and _signals.noted.by not in before:
        raise_noted()


def raise_noted() -> None:
    """Raise a signal that was noted while held; do nothing without a noted signal.

    Raises:
        Interrupted: a signal came.
    """
    noted = _signals.noted
    if noted is not None:
        _signals.noted, _signals.raised_ns = None, clock.now_ns()
        raise noted
