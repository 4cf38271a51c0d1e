"""The forward loop: the logits of one batch after another, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from .data import Batch
from .train_loop import Step


@dataclass(frozen=True)
class ForwardDone:
    """A step whose work has been enqueued, and its logits ``[B, T, vocab]``."""

    step: Step
    logits: Tensor


def _never(step: Step, logits: Tensor) -> bool:
    return False


def forward_loop(
    model: Callable[..., Tensor],
    steps: Iterable[Step],
    batches: Callable[[int], Sequence[Batch]],
    pause: Callable[[Step, Tensor], bool] = _never,
    *,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[ForwardDone]:
    """Go forward once per entry of ``steps`` on ``batches(seed)`` and yield after each.

    A step has one batch or several, one after the other: its logits are those of the last, which
    the next step need not keep. Passes run in inference mode and in ``context()``, such as
    autocast. ``pause`` is called in every step with its logits, and ends the loop by returning
    True. Nothing is timed, synchronised or read here.
    """
    for step in steps:
        parts = batches(step.seed)
        with torch.inference_mode(), context():
            for part in parts:
                logits = model(part.ids, **part.extra)
        if pause(step, logits):
            return
        yield ForwardDone(step, logits)
