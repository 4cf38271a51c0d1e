"""The common objects of every mode: the model as the plugin left the model, and the device."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from llmb.config import RunConfig
from llmb.errors import UnavailableError
from llmb.observe.canonical import Canonical
from llmb.plugin.backend import Backend
from llmb.plugin.manager import Plugin
from llmb.records.audited import OnePart
from llmb.reference.shapes import Shape
from llmb.workloads import Workload

if TYPE_CHECKING:
    from llmb.parallel.layout import Layout
    from llmb.parallel.ranks import Ranks


@dataclass(frozen=True)
class Stage:
    """The post-processed model, before any executor, with plugin, backend and config."""

    plugin: Plugin
    backend: Backend
    config: RunConfig
    workload: Workload
    model: nn.Module
    canonical: Canonical
    #: Elements of each canonical parameter, in the model's order.
    sizes: Mapping[str, int]
    #: The other ranks, and the part of the model on each rank; None for a single rank.
    ranks: Ranks | None = None
    layout: Layout | None = None
    #: Gradients of every step are compared (rule L1).
    every_step: bool = False
    #: The one part to look at, if a single judgement is repeated.
    only: OnePart | None = None

    @property
    def shape(self) -> Shape:
        """The sizes of the model."""
        return self.workload.shape

    def mean(self, loss: Tensor) -> Tensor:
        """Return the mean loss of a step over all ranks; a collective call."""
        return loss if self.ranks is None else self.ranks.mean(loss)

    def total(self, shown: Tensor, turn: int) -> Tensor:
        """Return the sum over all ranks' shares of sharded parameters; a collective call.

        Of replicas, return the values of the rank whose ``turn`` it is. The values travel over
        llmb's own process group: a plugin may have brought the library of the model's group.
        """
        if self.ranks is None or self.layout is None:
            return shown
        if self.layout.is_sharded:
            return self.ranks.total(shown)
        return self.ranks.one(shown, turn % self.ranks.place.world_size)

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass.

        Raises:
            UnavailableError: mixed precision was asked for, and the device has no autocast.
        """
        if not self.config.mixed_precision:
            return nullcontext()
        dtype = getattr(torch, self.config.precision.dtype)
        try:
            return torch.autocast(torch.device(self.config.device).type, dtype)
        except (AssertionError, RuntimeError) as error:
            first = str(error).partition(",")[0]
            raise UnavailableError(
                f"{self.config.device} has no autocast in {self.config.precision.name} ({first}): "
                "use --no-mixed-precision"
            ) from error
