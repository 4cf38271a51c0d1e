"""Data parallelism as torch's DistributedDataParallel does it: every rank has the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from llmb.config import RunConfig


class Replicated:
    """A model, or what an executor made of it, whose gradients are the mean of all ranks'."""

    def __init__(self, model: Callable[..., Any], config: RunConfig) -> None:
        """Wrap ``model``: its parameters stay the same objects."""
        assert isinstance(model, nn.Module)
        device = torch.device(config.device)
        self.program = DistributedDataParallel(
            model,
            device_ids=None if device.type == "cpu" else [device],
            broadcast_buffers=False,  # they are constants
        )
        self._accumulate, self._parts = config.accumulate, 0

    @contextmanager
    def part(self, around: AbstractContextManager[object]) -> Iterator[None]:
        """Surround the forward pass of the next part of a step.

        Ranks speak of the gradients after the last part alone: whether a backward pass ends in
        that is settled in its forward pass.
        """
        self._parts += 1
        with around:
            if self._parts % self._accumulate:
                with self.program.no_sync():
                    yield
            else:
                yield
