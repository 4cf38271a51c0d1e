"""Who of the ranks is alive and where it is, told over a store beside what they communicate with.

A rank that dies or hangs is met by the others as an error of their own, or not at all: whoever
waits for another rank than the dead one waits on. So every rank says twice a second that it lives
and in which line its main thread is, and looks whether the run has been given up. A rank whose
communication fails raises an alarm and waits. Rank 0 reads the signs of all ranks in one request,
and writes which rank is missing. No other rank reads more than the sign of rank 0.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from torch._C._distributed_c10d import Store

from llmb.parallel.missing import SILENT, Inquiry, Sign, key, read
from llmb.parallel.place import UNREACHABLE

_BEAT_S = 0.5
#: A store that has not answered for so long has gone with its host.
_ANSWER_S = 5.0
#: Why the run has failed, and the rank that asks who is missing: the first of each is kept.
_FAILED, _ALARM = "failed", "alarm"
#: How many ranks know why the run has failed.
_KNOWN = "known"


class Lookout:
    """A thread of this rank that gives signs of life and looks for bad news.

    The thread alone talks to the store. A store on a host that is cut off never answers, and then
    the main thread waits for this thread no longer than for an answer.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        timeout_s: float,
        give_up: Callable[[str], None],
    ) -> None:
        """Begin, once every rank's first sign is in ``store`` (`announce`).

        Args:
            rank: this one.
            world_size: how many there are.
            store: where signs are.
            timeout_s: how long a rank waits for a message of another, to be named in words.
            give_up: called once, with the reason, where another rank ended the run.
        """
        self._rank, self._world_size, self._store = rank, world_size, store
        self._give_up = give_up
        watched = range(world_size if rank == 0 else 1)
        self._inquiry, self._keys = Inquiry(watched, timeout_s), [key(each) for each in watched]
        self._main = threading.main_thread().ident or 0
        self._beats, self._cause, self._symptom = 0, "", ""
        self._raised, self._said, self._told = False, "", threading.Event()
        self._ended, self._wake = False, threading.Event()
        self.thread = threading.Thread(target=self._look, name="llmb-lookout", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Look no more."""
        self._ended = True
        self._wake.set()

    def fail(self, cause: str) -> str:
        """Tell all ranks that the run has failed; return why, as the first of them said."""
        self._cause = cause
        said = self._answer()
        return cause if said == UNREACHABLE else said

    def blame(self, symptom: str) -> str:
        """Return which rank is the cause of ``symptom``, an error of this rank's communication."""
        self._symptom = symptom
        return self._answer()

    def _answer(self) -> str:
        self._wake.set()
        beats = self._beats
        while not self._told.wait(_ANSWER_S):
            if beats == self._beats:
                return self._said or UNREACHABLE
            beats = self._beats
        return self._said

    def _look(self) -> None:
        try:
            while not (self._ended or self._said):
                self._said = self._turn()
                self._beats += 1
                if not self._said:
                    self._wake.wait(_BEAT_S)
                    self._wake.clear()
            if self._said:
                self._part()
        except RuntimeError:
            self._said = self._said or UNREACHABLE
        self._told.set()
        if self._said and not (self._ended or self._cause or self._symptom):
            self._give_up(self._said)

    def _part(self) -> None:
        """Say that this rank knows the answer; rank 0, whose end may be the store's, leaves last.

        It stays until all who are alive know why, or nobody else comes any more.
        """
        known, quiet = self._store.add(_KNOWN, 1), 0
        awaited = self._world_size - len(self._inquiry.silent())
        while self._rank == 0 and known < awaited and quiet < SILENT:
            time.sleep(_BEAT_S)
            self._beats += 1
            before, known = known, self._store.add(_KNOWN, 0)
            quiet = quiet + 1 if known == before else 0

    def _turn(self) -> str:
        """Give a sign of life; return why the run has failed, nothing if it has not."""
        cause, symptom = self._cause, self._symptom
        self._store.set(key(self._rank), Sign(self._beats + 1, symptom, self._place()).written())
        if not cause and not self._store.check([_FAILED]):
            cause = self._missing(symptom)
            if not cause:
                return ""
        return self._store.compare_set(_FAILED, "", cause).decode(errors="replace")

    def _missing(self, symptom: str) -> str:
        """Return who is missing, nothing if nobody asks or it is early.

        Of an alarm that others raise, rank 0 alone takes notice: it answers for all.
        """
        if symptom:
            if not self._raised:
                self._store.compare_set(_ALARM, "", f"{self._rank} {symptom}")
                self._raised = True
        elif self._rank != 0 or not self._store.check([_ALARM]):
            return ""
        alarm, *signs = self._store.multi_get([_ALARM, *self._keys])
        witness, _, said = alarm.decode(errors="replace").partition(" ")
        self._inquiry.look([read(sign) for sign in signs])
        found = self._inquiry.gone(int(witness), said)
        if self._rank == 0:
            found = found or self._inquiry.hanging(int(witness), said)
        return found

    def _place(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._main)
        if frame is None:
            return ""
        code = frame.f_code
        return f"{Path(code.co_filename).name}:{frame.f_lineno}, {code.co_name}"


def announce(rank: int, store: Store) -> None:
    """Write the first sign of ``rank``: a reading of all signs waits for one that is not there."""
    store.set(key(rank), Sign().written())
