"""Who of the ranks is alive and where it is, told over a store beside what they communicate with.

A rank that dies or hangs is met by the others as an error of their own, or not at all: whoever
waits for another rank than the dead one waits on. So every rank says twice a second that it lives
and in which line its main thread is, and looks whether any rank has given the run up.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from torch._C._distributed_c10d import Store

from llmb.parallel.place import UNREACHABLE

_BEAT_S = 0.5
#: Without a sign for so long, a process is gone: what holds the interpreter that long is not said.
_SILENT_S, _GLANCE_S = 3.0, 0.1
#: As long as a store's answer may take, and another rank's to tell what it has learnt.
_ANSWER_S, _WORD_S = 2.0, 1.0
_FAILED = "failed"
T = TypeVar("T")


class Lookout:
    """A thread of this rank that gives signs of life and looks for bad news."""

    def __init__(
        self, rank: int, world_size: int, store: Store, give_up: Callable[[str], None]
    ) -> None:
        """Begin; ``give_up`` is called once, with the reason, where another rank ended the run."""
        self._rank, self._world_size, self._store = rank, world_size, store
        self._give_up, self._ended = give_up, threading.Event()
        self._main = threading.main_thread().ident or 0
        self._beats, self._reachable = 0, True
        self.thread = threading.Thread(target=self._look, name="llmb-lookout", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended.set()

    def fail(self, reason: str) -> str:
        """Tell all ranks that the run has failed; return why, as the first of them said."""
        self.end()
        said: bytes | None = self._answer(lambda: self._store.compare_set(_FAILED, "", reason))
        return reason if said is None else said.decode(errors="replace")

    def word(self) -> str:
        """Return why another rank has given the run up; nothing where none soon does."""
        for _ in range(round(_WORD_S / _GLANCE_S)):
            said = self._answer(
                lambda: self._store.get(_FAILED) if self._store.check([_FAILED]) else b""
            )
            if said:
                return said.decode(errors="replace")
            time.sleep(_GLANCE_S)
        return ""

    def gone(self) -> list[int] | None:
        """Return the ranks who show no sign for a while; None where rank 0's store gives none."""
        before = self._signs()
        silent = [rank for rank in range(self._world_size) if rank != self._rank]
        for _ in range(round(_SILENT_S / _GLANCE_S)):
            time.sleep(_GLANCE_S)
            after = self._signs()
            if before is None or after is None:
                return None
            silent = [rank for rank in silent if before[rank] == after[rank]]
            if not silent:
                break
        return silent

    def where(self, rank: int) -> str:
        """Return the line in which the main thread of ``rank`` was last seen, or nothing."""
        signs = self._signs()
        return "" if signs is None else signs[rank].partition(" ")[2]

    def _signs(self) -> list[str] | None:
        keys = [_sign(rank) for rank in range(self._world_size)]
        return self._answer(
            lambda: [
                self._store.get(key).decode(errors="replace") if self._store.check([key]) else ""
                for key in keys
            ]
        )

    def _answer(self, ask: Callable[[], T]) -> T | None:
        """Return what ``ask`` says, None where the store is gone or gives no answer for a moment.

        A store waits for ever for one whose host has been cut off: so it is asked in a thread, and
        never again.
        """
        answers: list[T] = []

        def wait() -> None:
            with suppress(RuntimeError):  # the store has gone with its host
                answers.append(ask())

        if self._reachable:
            asking = threading.Thread(target=wait, daemon=True)
            asking.start()
            asking.join(_ANSWER_S)
            self._reachable = bool(answers)
        return answers[0] if answers else None

    def _look(self) -> None:
        while not self._ended.wait(_BEAT_S):
            try:
                self._beats += 1
                self._store.set(_sign(self._rank), f"{self._beats} {self._place()}")
                if self._store.check([_FAILED]):
                    reason = self._store.get(_FAILED).decode(errors="replace")
                    break
            except RuntimeError:
                reason = UNREACHABLE
                break
        else:
            return
        if not self._ended.is_set():
            self._give_up(reason)

    def _place(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._main)
        if frame is None:
            return ""
        code = frame.f_code
        return f"{Path(code.co_filename).name}:{frame.f_lineno}, {code.co_name}"


def _sign(rank: int) -> str:
    return f"alive/{rank}"
