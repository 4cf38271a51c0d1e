"""Read elements in the pause of every step, and commit to the elements (rule L1).

A message in the pause, after the step has been made, determines the elements to read. Only after
the reading does the worker learn whether the step is judged. On the CPU a digest of the elements
leaves the process before that. Otherwise the elements are copied to the host while the device works
on, and the digest leaves in the next pause. A plugin that has not computed the elements in time has
nothing to show, and cannot change the elements later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from llmb.observe.host_bytes import sha256_of
from llmb.records.audited import LedgerEvidence


@dataclass(frozen=True)
class _Underway:
    """A row being copied to the host."""

    row: Tensor
    arrived: torch.Event | None

    @property
    def is_computed(self) -> bool:
        """Whether the elements are known without waiting for a device."""
        return self.arrived is None and self.row.device.type == "cpu"

    def landed(self) -> Tensor:
        """Return the row as float32 on the host, after the copy is complete."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.row.to("cpu").float()


class StepLedger(ABC):
    """Keeps a row of elements for each step."""

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = ("_rows", "_underway")

    def __init__(self) -> None:
        """Start without a row."""
        self._rows: list[Tensor] = []
        self._underway: _Underway | None = None

    @abstractmethod
    def take(self, places: int, rate: float) -> None:
        """Read the present step at ``places``; in training, set the learning ``rate``."""

    @abstractmethod
    def evidence(self) -> LedgerEvidence:
        """Return the meaning of a row's elements, such as parameter names and counts."""

    def committed_at_once(self) -> str:
        """Return the sha256 of the row of this step, ``""`` while a device computes the row."""
        if self._underway is None or not self._underway.is_computed:
            return ""
        return self.commitment()

    def commitment(self) -> str:
        """Return the sha256 of the latest row, ``""`` without a row.

        The call waits for the copy to the host: a device finished the previous step long ago.
        """
        self._land()
        return sha256_of(self._rows[-1]) if self._rows else ""

    def rows(self) -> Tensor:
        """Return all rows, ``[steps, elements]``, float32 on the host."""
        self._land()
        return torch.stack(self._rows) if self._rows else torch.zeros(0, 0)

    def _send(self, row: Tensor) -> None:
        """Start to copy the ``row`` of the present step to the host."""
        self._land()
        self._underway = _sent(row)

    def _land(self) -> None:
        if self._underway is not None:
            self._rows.append(self._joined(self._underway.landed()))
            self._underway = None

    def _joined(self, row: Tensor) -> Tensor:
        """Return the row of all ranks: a collective call."""
        return row


def _sent(row: Tensor) -> _Underway:
    """Start to copy ``row`` to the host.

    The worker does not wait for a device with pinned memory and events in torch, such as CUDA. For
    other devices the row is copied when needed, in the next pause.
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
