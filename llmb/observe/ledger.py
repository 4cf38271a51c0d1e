"""What is read in the pause of every step, and committed to a step later (rule L1).

The answer in the pause, when the step has been made, says which elements are read. They go to the
host while the device works on, and their digest leaves the process in the next pause. So a plugin
that has not computed them in time has nothing to show, and cannot change them later.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from llmb.records.audited import LedgerEvidence


@dataclass(frozen=True)
class _Underway:
    """A row on its way to the host."""

    row: Tensor
    arrived: torch.Event | None

    def landed(self) -> Tensor:
        """Return the row as float32 on the host, once it is there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.row.to("cpu").float()


class StepLedger(ABC):
    """Keeps a row of elements for each step."""

    # See ``StepSampler``: nothing can be replaced on the object alone.
    __slots__ = ("_rows", "_underway")

    def __init__(self) -> None:
        """Begin without a row."""
        self._rows: list[Tensor] = []
        self._underway: _Underway | None = None

    @abstractmethod
    def take(self, places: int, rate: float) -> None:
        """Read the present step at ``places``; it is to have learning ``rate`` if it trains."""

    @abstractmethod
    def evidence(self) -> LedgerEvidence:
        """Return which elements of a row are whose."""

    def commitment(self) -> str:
        """Return the sha256 of what was read in the step before, ``""`` where nothing was.

        It waits until that is on the host: the device finished that step long ago.
        """
        self._land()
        return hashlib.sha256(self._rows[-1].numpy().tobytes()).hexdigest() if self._rows else ""

    def rows(self) -> Tensor:
        """Return what was read, ``[steps, elements]``, float32 on the host."""
        self._land()
        return torch.stack(self._rows) if self._rows else torch.zeros(0, 0)

    def _send(self, row: Tensor) -> None:
        """Let ``row`` of the present step begin its way to the host."""
        self._land()
        self._underway = _sent(row)

    def _land(self) -> None:
        if self._underway is not None:
            self._rows.append(self._underway.landed())
            self._underway = None


def _sent(row: Tensor) -> _Underway:
    """Begin to copy ``row`` to the host.

    The worker does not wait for the device where torch has pinned memory and events for it, such as
    CUDA. Elsewhere the row is copied when it is needed, in the next pause.
    """
    if row.device.type == "cpu":
        return _Underway(row, None)
    try:
        there = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        there.copy_(row, non_blocking=True)
        arrived = torch.Event(row.device)
        arrived.record()
    except (RuntimeError, ValueError):
        return _Underway(row, None)
    return _Underway(there, arrived)
