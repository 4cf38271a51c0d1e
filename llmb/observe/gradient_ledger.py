"""Some elements of every gradient in every step, read in its pause and committed to a step later.

The answer in the pause, when the gradients are there, says which elements are read. The elements go
to the host while the device works on, and their digest leaves the process in the next pause. So a
plugin that has not computed the gradients in time has nothing to show, and cannot change the
elements later (rule L1).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from llmb.observe.places import SampledIndices, choose, fewer
from llmb.records.audited import LedgerEvidence, LedgerSegment

#: Elements of each gradient that are read in a step.
ELEMENTS = 64


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


class GradientLedger:
    """Reads elements of all gradients in each pause, and sets the learning rate of the step."""

    # See ``StepSampler``: nothing can be replaced on the object alone.
    __slots__ = ("_count", "_optimizer", "_parameters", "_rows", "_seeds", "_underway", "rates")

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Read the gradients of all trained parameters of ``model``, as they are stored."""
        self._parameters = [
            (name, p) for name, p in model.named_parameters() if p.requires_grad and p.numel()
        ]
        self._count = fewer(ELEMENTS, len(self._parameters))
        self._optimizer = optimizer
        self._rows: list[Tensor] = []
        self._seeds: list[int] = []
        #: The learning rate of each step.
        self.rates: list[float] = []
        self._underway: _Underway | None = None

    def commitment(self) -> str:
        """Return the sha256 of what was read in the step before, ``""`` where nothing was.

        It waits until that is on the host: the device finished that step's gradients long ago.
        """
        self._land()
        return hashlib.sha256(self._rows[-1].numpy().tobytes()).hexdigest() if self._rows else ""

    def take(self, places: int, rate: float) -> None:
        """Read the gradients at ``places``, and let the step that follows have learning ``rate``.

        Zeros are read of a parameter without a gradient.
        """
        self._land()
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with torch.no_grad():
            parts = [
                torch.zeros(where.count, dtype=p.dtype, device=p.device)
                if p.grad is None
                else where.read(p.grad)
                for (_, p), where in zip(self._parameters, self._places(places), strict=True)
            ]
            if len({part.dtype for part in parts}) > 1:
                parts = [part.float() for part in parts]
            self._underway = _sent(torch.cat(parts))
        self._seeds.append(places)
        self.rates.append(rate)

    def rows(self) -> Tensor:
        """Return what was read, ``[steps, elements]``, float32 on the host."""
        self._land()
        return torch.stack(self._rows) if self._rows else torch.zeros(0, 0)

    def read_places(self) -> list[tuple[str, nn.Parameter, Tensor]]:
        """Return each stored parameter, and the elements that were read of it in all steps."""
        every = [self._places(seed) for seed in self._seeds]
        return [
            (name, p, torch.cat([step[number].indices() for step in every]))
            for number, (name, p) in enumerate(self._parameters)
        ]

    def in_steps(self, places: Tensor) -> Tensor:
        """Return ``places``, which are those of ``read_places`` one after another, by step.

        The shape is that of ``rows``.
        """
        steps, first, parts = len(self._seeds), 0, []
        for count in self._counts():
            parts.append(places[first : first + steps * count].view(steps, count))
            first += steps * count
        return torch.cat(parts, 1)

    def evidence(self) -> LedgerEvidence:
        """Return which elements of a row are whose."""
        return LedgerEvidence(
            segments=tuple(
                LedgerSegment(name=name, elements=count)
                for (name, _), count in zip(self._parameters, self._counts(), strict=True)
            )
        )

    def _counts(self) -> list[int]:
        return [min(self._count, p.numel()) for _, p in self._parameters]

    def _places(self, seed: int) -> Sequence[SampledIndices]:
        sizes = ((name, p.numel()) for name, p in self._parameters)
        return [choose(seed, "ledger", name, size, self._count) for name, size in sizes]

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
