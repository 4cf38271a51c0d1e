"""The train loop: forward, backward, optimizer step, zero_grad, once per step, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer


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


def train_loop(
    model: nn.Module,
    optimizer: Optimizer,
    steps: Iterable[Step],
    batch: Callable[[int], Tensor],
    pause: Callable[[Step, Tensor], bool] = _never,
) -> Iterator[StepDone]:
    """Train one step per entry of ``steps`` on ``batch(seed)`` and yield after each.

    ``pause`` is called in every step once its gradients are there: whether a step is looked at, and
    whether it is the last, is known no earlier. It gets the step and its loss, and ends the loop by
    returning True. Nothing is timed, synchronised or read here: whoever drives the iterator does
    that between steps, the same for a timed step as for any other.
    """
    optimizer.zero_grad(set_to_none=True)  # whatever gradients came with the model do not count
    for step in steps:
        ids = batch(step.seed)
        loss = model(ids, labels=ids)
        loss.backward()
        if pause(step, loss.detach()):
            return
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield StepDone(step, loss.detach())
