"""Heartbeats of all ranks over a separate store, to name the rank that died or hangs.

When a rank dies or hangs, the remaining ranks see a communication error, or no error: a rank that
waits for a living rank waits on. Every rank therefore writes a heartbeat twice a second, with
the line of its main thread, and checks whether the run has been given up. A rank with a
communication error raises an alarm and waits. Rank 0 reads the heartbeats of all ranks in a single
request and writes the missing ranks. All ranks above 0 read the heartbeat of rank 0 only.

Example of an answer: ``ranks 1, 3 ended while the others were at work, or cannot be reached``.
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
#: A store that has not answered for 5 s is lost, together with its host.
_ANSWER_S = 5.0
#: Keys of the failure reason and of the alarm (rank and error). The first value of each is kept.
_FAILED, _ALARM = "failed", "alarm"
#: Key of the number of ranks that know the failure reason.
_KNOWN = "known"


class Lookout:
    """A thread of this rank that writes heartbeats and reads failure reasons.

    Only the thread talks to the store. A store on an unreachable host never answers. The main
    thread therefore stops waiting once the thread has made no turn for 5 s.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        timeout_s: float,
        give_up: Callable[[str], None],
    ) -> None:
        """Start the thread. Every rank must have called ``announce`` before.

        Args:
            rank: number of this rank.
            world_size: number of ranks.
            store: the store with the heartbeats.
            timeout_s: seconds that a rank waits for a message; used in error texts only.
            give_up: called once, with the failure reason, if another rank ended the run.
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
        """Stop the thread."""
        self._ended = True
        self._wake.set()

    def fail(self, cause: str) -> str:
        """Tell all ranks that the run has failed; return the first reason that a rank gave."""
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
        """Count this rank as informed; rank 0 leaves last, because it may host the store.

        Rank 0 stays until all living ranks are informed, or until no further rank has reported
        for 3 s (``SILENT`` times ``_BEAT_S``).
        """
        known, quiet = self._store.add(_KNOWN, 1), 0
        awaited = self._world_size - len(self._inquiry.silent())
        while self._rank == 0 and known < awaited and quiet < SILENT:
            time.sleep(_BEAT_S)
            self._beats += 1
            before, known = known, self._store.add(_KNOWN, 0)
            quiet = quiet + 1 if known == before else 0

    def _turn(self) -> str:
        """Write a heartbeat; return the reason of failure, or an empty text."""
        cause, symptom = self._cause, self._symptom
        self._store.set(key(self._rank), Sign(self._beats + 1, symptom, self._place()).written())
        if not cause and not self._store.check([_FAILED]):
            cause = self._missing(symptom)
            if not cause:
                return ""
        return self._store.compare_set(_FAILED, "", cause).decode(errors="replace")

    def _missing(self, symptom: str) -> str:
        """Return the missing ranks in words; empty if no alarm is raised or evidence is too short.

        Only rank 0 reacts to the alarm of another rank, and answers for all ranks.
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
    """Write the first heartbeat of ``rank``: reading all heartbeats waits for a missing key."""
    store.set(key(rank), Sign().written())
