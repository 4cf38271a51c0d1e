"""How one model is laid out over ranks: replicated (DDP), or sharded (FSDP2), or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from llmb.config import RunConfig
from llmb.parallel.mesh import Mesh
from llmb.parallel.tensor import slice_model
from llmb.reference.models import blocks_of
from llmb.reference.shapes import Shape


class Layout:
    """The ranks' shares of one model and of a step's sequences."""

    def __init__(self, config: RunConfig) -> None:
        """Lay the ranks out: a collective call."""
        self._config, self._device = config, torch.device(config.device)
        self._parallelism = config.parallelism
        self.mesh = Mesh(config.parallelism, self._device.type)
        # Dropout: every replica's masks are its own, and the same for all ranks that share it.
        torch.manual_seed(config.seed + self.mesh.replica)
        self._parts = 0
        self._silent: Callable[[bool], AbstractContextManager[None]] = _as_ever

    @property
    def is_sharded(self) -> bool:
        """Tell whether no rank has the whole model."""
        return self._parallelism.dp_shard > 1 or self._parallelism.tp > 1

    def spread(self, model: nn.Module, shape: Shape) -> None:
        """Spread ``model`` over the ranks that share it, block by block, in place.

        Its parameters become others, under the same names.
        """
        if not self.is_sharded:
            return
        how = self._parallelism
        if how.tp > 1:
            slice_model(model, shape, self.mesh.part("tp"), how)
        if how.replicas == 1:
            return
        names = ("dp_replicate", "dp_shard") if how.dp_replicate > 1 else ("dp_shard",)
        mesh, again = self.mesh.part(*names), how.reshard_after_forward
        for block in blocks_of(model, shape):
            fully_shard(block, mesh=mesh, reshard_after_forward=again)
        fully_shard(model, mesh=mesh, reshard_after_forward=again)
        self._silent = _of_shards(model)

    def program(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``program``, a model or what an executor made of it, as all ranks call it."""
        if self.is_sharded:
            return program
        assert isinstance(program, nn.Module)
        replicated = DistributedDataParallel(
            program,
            process_group=self.mesh.part("dp_replicate").get_group(),
            device_ids=None if self._device.type == "cpu" else [self._device],
            forward_sync_buffers=False,  # they are constants
        )
        self._silent = _of_replicas(replicated)
        return replicated

    @contextmanager
    def part(self, around: AbstractContextManager[object]) -> Iterator[None]:
        """Surround the forward pass of the next part of a step.

        Ranks speak of gradients after the last part alone: whether a backward pass ends in that is
        settled before its forward pass.
        """
        self._parts += 1
        last = self._parts % self._config.accumulate == 0
        with around, self._silent(last):
            yield

    def silence(self) -> AbstractContextManager[None]:
        """Surround passes in which replicas do not speak of their gradients."""
        return self._silent(False)

    def settle(self, model: nn.Module) -> None:
        """Let every rank hold its shards alone: an edit of what was gathered would be lost."""
        for module in _sharded(model):
            module.reshard()


@contextmanager
def _as_ever(last: bool) -> Iterator[None]:
    yield


def _of_replicas(model: DistributedDataParallel) -> Callable[[bool], AbstractContextManager[None]]:
    return lambda last: _as_ever(last) if last else model.no_sync()


def _of_shards(model: nn.Module) -> Callable[[bool], AbstractContextManager[None]]:
    assert isinstance(model, FSDPModule)

    def silent(last: bool) -> AbstractContextManager[None]:
        model.set_requires_gradient_sync(last)
        return _as_ever(last)

    return silent


def _sharded(model: nn.Module) -> Iterable[FSDPModule]:
    return (module for module in model.modules() if isinstance(module, FSDPModule))
