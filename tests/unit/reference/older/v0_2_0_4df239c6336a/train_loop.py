"""The train loop: forward, backward, optimizer step, zero_grad, once per step, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from .data import Batch


@dataclass(frozen=True)
class Step:
    """One optimizer step: its number, the seed of its tokens, and whether it ends in a fence."""

    index: int
    seed: int
    fence: bool


@dataclass(frozen=True)
class StepDone:
    """A step whose work has been enqueued, and its loss (scalar tensor on the device)."""

    step: Step
    loss: Tensor


def _never(step: Step, loss: Tensor) -> bool:
    return False


def _nothing() -> None:
    pass


def train_loop(
    model: Callable[..., Any],
    optimizer: Optimizer,
    steps: Iterable[Step],
    batches: Callable[[int], Sequence[Batch]],
    pause: Callable[[Step, Tensor], bool] = _never,
    *,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
    clip_grad_norm: float | None = None,
    clipped: Callable[[], None] = _nothing,
    scaler: GradScaler | None = None,
) -> Iterator[StepDone]:
    """Train one step per entry of ``steps`` on ``batches(seed)`` and yield after each.

    A step has one batch, or several whose gradients are accumulated: its loss is their mean.
    Forward passes run in ``context()``, such as autocast. ``pause`` is called in every step once
    its gradients are there: whether a step is looked at, and whether it is the last, is known no
    earlier. It gets the step and its loss, and ends the loop by returning True. With
    ``clip_grad_norm`` the gradients are then scaled so that their norm, all together, is that at
    most, and ``clipped`` is called. With ``scaler`` the loss is scaled for the backward pass and
    the gradients back again before the pause; where they overflowed, the optimizer's step is left
    out. Nothing else is timed, synchronised or read here: whoever drives the iterator does that
    between steps, the same for a timed step as for any other.
    """
    optimizer.zero_grad(set_to_none=True)  # whatever gradients came with the model do not count
    for step in steps:
        parts = batches(step.seed)
        losses = []
        for part in parts:
            with context():
                loss = model(part.ids, labels=part.labels, **part.extra)
            if len(parts) > 1:
                loss = loss / len(parts)
            (loss if scaler is None else scaler.scale(loss)).backward()
            losses.append(loss.detach())
        total = losses[0] if len(parts) == 1 else torch.stack(losses).sum()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if pause(step, total):
            return
        if clip_grad_norm is not None:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, clip_grad_norm)
            clipped()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        yield StepDone(step, total)
