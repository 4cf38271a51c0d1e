"""Finds missing ranks from successive readings of every rank's heartbeat.

A heartbeat is a value in a store. Example: ``12\\nTimed out waiting 8000ms\\nmodel.py:40, forward``
is the 12th heartbeat of a rank with a communication error, with the line of its main thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from llmb.records.printable import few

#: A rank without a new heartbeat in 6 readings after the first reading is gone.
SILENT = 6
#: After 4 readings without a further error report, living ranks without an error hang.
_SETTLED = 4
#: Words in the error of a lost connection, and not in the error of a timeout.
_BROKEN = ("connection", "pair closure", "broken pipe")
_SHOWN_RANKS, _SHOWN_CHARACTERS = 8, 300


class Sign(NamedTuple):
    """The heartbeat that a rank writes twice a second."""

    beats: int = 0
    #: The communication error of this rank, caused by another rank; empty without an error.
    symptom: str = ""
    #: The current line of the main thread. Example: ``model.py:40, forward``.
    where: str = ""

    def written(self) -> str:
        """Return this sign as the value of its key."""
        return f"{self.beats}\n{self.symptom[:_SHOWN_CHARACTERS]}\n{self.where}"


def key(rank: int) -> str:
    """Return the key of the sign of ``rank``."""
    return f"alive/{rank}"


def read(value: bytes) -> Sign:
    """Return the sign that was written as ``value``."""
    beats, symptom, where = value.decode(errors="replace").split("\n", 2)
    return Sign(int(beats), symptom, where)


def named(ranks: Sequence[int]) -> str:
    """Return ``ranks`` in words, at most 8 by number. Example: ``ranks 1, 3``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {few(map(str, ranks), _SHOWN_RANKS)}"


class Inquiry:
    """Finds the missing rank among ``ranks``, once a rank has raised an alarm.

    Time is counted in readings. On a slow store or host the reader is as slow as the ranks. A slow
    machine therefore makes no rank look dead.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        """Begin; each rank waits ``timeout_s`` for a message."""
        self._ranks, self._timeout_s = ranks, timeout_s
        self._count, self._readings = 0, deque[list[Sign]](maxlen=SILENT + 1)

    def look(self, signs: list[Sign]) -> None:
        """Take the next reading: the heartbeat of each rank, in order."""
        self._count += 1
        if self._count > 1:  # a last heartbeat may have been in flight at the alarm
            self._readings.append(signs)

    def silent(self) -> list[int]:
        """Return the ranks without new heartbeats; none before 7 readings are kept."""
        if len(self._readings) <= SILENT:
            return []
        each = zip(self._ranks, self._readings[0], self._readings[-1], strict=True)
        return [rank for rank, before, now in each if before.beats == now.beats]

    def gone(self, witness: int, symptom: str) -> str:
        """Return the silent ranks in words; empty if no rank is silent or readings are too few.

        ``witness`` is the rank that raised the alarm, and ``symptom`` is the error of the witness.
        """
        silent = self.silent()
        if not silent:
            return ""
        where = self._readings[-1][self._ranks.index(silent[0])].where
        return (
            f"{named(silent)} ended while the others were at work, or cannot "
            f"be reached ({f'last seen in {where}; ' if where else ''}rank {witness}: {symptom})"
        )

    def hanging(self, witness: int, symptom: str) -> str:
        """Return the living ranks that do not communicate, in words; empty if it is too early."""
        if len(self._readings) <= SILENT:
            return ""
        now, before = self._readings[-1], self._readings[-1 - _SETTLED]
        absent = [i for i, sign in enumerate(now) if not sign.symptom]
        if len(absent) < sum(not sign.symptom for sign in before):
            return ""  # further ranks still report errors
        symptoms = [sign.symptom.lower() for sign in now if sign.symptom]
        waited = any(not any(word in text for word in _BROKEN) for text in symptoms)
        if not absent or not waited:
            return f"rank {witness} could not communicate: {symptom}"
        where = now[absent[0]].where
        return (
            f"{named([self._ranks[i] for i in absent])} did not come within {self._timeout_s:.0f} "
            f"s: it hangs{f' in {where}' if where else ''}"
        )
