"""Which ranks are missing, found in successive readings of every rank's sign of life.

A sign is one value in a store. Example: ``12\\nTimed out waiting 8000ms\\nmodel.py:40, forward`` is
the 12th sign of a rank whose communication has failed, with the line of its main thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

#: Readings after the first in which a rank shows no new sign: the rank is gone.
SILENT = 6
#: Readings in which no further rank reports an error: who is alive and reports none hangs.
_SETTLED = 4
#: Words of an error that a lost connection raises, and a wait that took too long does not.
_BROKEN = ("connection", "pair closure", "broken pipe")
_SHOWN_RANKS, _SHOWN_CHARACTERS = 8, 300


class Sign(NamedTuple):
    """What a rank says of itself twice a second."""

    beats: int = 0
    #: The error of this rank's communication: what some other rank has caused.
    symptom: str = ""
    #: The line that its main thread is in.
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
    """Return ``ranks`` in words. Example: ``ranks 1, 3``; of many the first, and how many more."""
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


class Inquiry:
    """Finds out which of ``ranks`` is missing, once a rank has raised an alarm.

    Time is counted in readings: where the store or the host is slow, the reader is as slow as the
    ranks that it reads of, so a slow machine makes nobody look dead.
    """

    def __init__(self, ranks: Sequence[int], timeout_s: float) -> None:
        """Begin; each rank waits ``timeout_s`` for a message."""
        self._ranks, self._timeout_s = ranks, timeout_s
        self._count, self._readings = 0, deque[list[Sign]](maxlen=SILENT + 1)

    def look(self, signs: list[Sign]) -> None:
        """Take the next reading: a sign of each rank, in order."""
        self._count += 1
        if self._count > 1:  # a last sign may have been on its way when the alarm was raised
            self._readings.append(signs)

    def silent(self) -> list[int]:
        """Return the ranks that have stopped to show signs; none if it is early."""
        if len(self._readings) <= SILENT:
            return []
        each = zip(self._ranks, self._readings[0], self._readings[-1], strict=True)
        return [rank for rank, before, now in each if before.beats == now.beats]

    def gone(self, witness: int, symptom: str) -> str:
        """Return in words which ranks are silent; nothing if none is, or it is early.

        ``witness`` is the rank that raised the alarm, ``symptom`` the error that it had.
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
        """Return which ranks are alive and do not communicate; nothing if it is early."""
        if len(self._readings) <= SILENT:
            return ""
        now, before = self._readings[-1], self._readings[-1 - _SETTLED]
        absent = [i for i, sign in enumerate(now) if not sign.symptom]
        if len(absent) < sum(not sign.symptom for sign in before):
            return ""  # others still come
        symptoms = [sign.symptom.lower() for sign in now if sign.symptom]
        waited = any(not any(word in text for word in _BROKEN) for text in symptoms)
        if not absent or not waited:
            return f"rank {witness} could not communicate: {symptom}"
        where = now[absent[0]].where
        return (
            f"{named([self._ranks[i] for i in absent])} did not come within {self._timeout_s:.0f} "
            f"s: it hangs{f' in {where}' if where else ''}"
        )
