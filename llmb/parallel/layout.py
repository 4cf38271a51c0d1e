"""How one model is laid out over ranks: replicated (DDP), sharded (FSDP2), sliced, in stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from llmb.config import RunConfig
from llmb.errors import UnavailableError
from llmb.parallel.mesh import Mesh
from llmb.parallel.tensor import found_blocks, slice_model
from llmb.reference.shapes import Shape

if TYPE_CHECKING:
    from llmb.parallel.pipeline import Pipeline


class Layout:
    """The ranks' shares of one model and of a step's sequences."""

    def __init__(self, config: RunConfig, limit: timedelta | None = None) -> None:
        """Build the mesh of ranks, with ``limit`` as timeout: a collective call."""
        self._config, self._device = config, torch.device(config.device)
        self._parallelism = config.parallelism
        self.mesh = Mesh(config.parallelism, self._device.type, limit)
        # Dropout masks differ between replicas, and are the same for all ranks of a replica.
        torch.manual_seed(config.seed + self.mesh.replica)
        #: The pipeline stages; None without pipeline parallelism.
        self.pipeline: Pipeline | None = None
        self._parts = 0
        #: The root modules of FSDP2: the model, or this rank's pipeline stages.
        self._roots: Sequence[nn.Module] = ()
        self._silent: Callable[[bool], AbstractContextManager[None]] = _as_ever
        #: The program of thunder, if thunder has sharded the model with its own FSDP.
        self._jitted: Callable[..., Any] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether no rank has the full model."""
        return self._parallelism.is_shared

    def spread(
        self, model: nn.Module, shape: Shape, policy: MixedPrecisionPolicy | None = None
    ) -> None:
        """Shard ``model`` over its ranks in place, block by block.

        The parameters are replaced by sharded parameters with the same names. Gathered
        parameters have the dtypes of ``policy``; without a policy, the dtypes of the parameters.
        """
        if not self.is_sharded:
            return
        how, roots = self._parallelism, [model]
        if how.pp > 1:
            from llmb.parallel.pipeline import Pipeline  # only stages need it

            self.pipeline = Pipeline(model, self._config, self.mesh)
            roots = [*self.pipeline.stages.values()]
        if how.tp > 1:
            slice_model(model, shape, self.mesh.part("tp"), how)
        if how.replicas == 1:
            return
        if self._config.executor == "thunder":
            from llmb.parallel.thunder_ranks import sharded

            again = how.reshard_after_forward
            self._jitted = sharded(model, self.mesh.part("dp_shard"), self._device, again=again)
            return
        names = ("dp_replicate", "dp_shard") if how.dp_replicate > 1 else ("dp_shard",)
        # Pure replication gathers nothing, and a schedule with a split backward pass would look
        # for the gathered parameters.
        mesh, again = self.mesh.part(*names), how.reshard_after_forward and how.dp_shard > 1
        policy = policy or MixedPrecisionPolicy()
        for root in roots:
            for block in (*found_blocks(root, shape), root):
                fully_shard(block, mesh=mesh, reshard_after_forward=again, mp_policy=policy)
        self._roots = roots
        if self.pipeline is None:  # a pipeline schedule itself decides when to reduce
            self._silent = _of_shards(model)

    def program(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return the callable that runs ``program`` on all ranks.

        ``program`` is a model, or an executor's program of the model, such as a compiled model.
        Thunder takes the model itself: the collectives are part of thunder's program.
        """
        if self.pipeline is not None:
            return self.pipeline.program()
        if self._jitted is not None:
            return self._jitted
        if self.is_sharded:
            return program
        assert isinstance(program, nn.Module)
        if self._config.executor == "thunder":
            from llmb.parallel import thunder_ranks

            jitted: Callable[..., Any] = thunder_ranks.replicated(
                program, self.mesh.part("dp_replicate")
            )
            return jitted
        replicated = DistributedDataParallel(
            program,
            process_group=self.mesh.part("dp_replicate").get_group(),
            device_ids=None if self._device.type == "cpu" else [self._device],
            forward_sync_buffers=False,  # buffers are constants
        )
        left_out = _left_out(replicated)
        if left_out:
            raise UnavailableError(
                f"the model tells DistributedDataParallel to leave out {len(left_out)} trained "
                f"parameters, such as {left_out[0]}: llmb's ranks share every gradient "
                "(_ddp_params_and_buffers_to_ignore may name buffers)"
            )
        # A replica has one hook that shares gradients: a plugin's could share them in 8 bits.
        untyped: Any = replicated
        untyped._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
        self._silent = _of_replicas(replicated)
        return replicated

    @contextmanager
    def part(self, around: AbstractContextManager[object]) -> Iterator[None]:
        """Surround the forward pass of the next micro-batch of a step.

        Ranks reduce gradients after the last micro-batch only. The forward pass of a micro-batch
        already decides whether its backward pass reduces gradients. Example: with
        ``--accumulate 4`` the gradients of micro-batches 1 to 3 stay on each rank.
        """
        self._parts += 1
        last = self._parts % self._config.parts == 0
        with around, self._silent(last):
            yield

    def silence(self) -> AbstractContextManager[None]:
        """Surround passes after which replicas do not average gradients."""
        if self._config.executor == "thunder":  # averages after each micro-batch, or never
            from llmb.parallel.thunder_ranks import silence

            return silence()
        return self._silent(False)

    def add_up(self, model: nn.Module) -> None:
        """Sum the partial gradients (DTensor placement ``Partial``): a collective call.

        Partial gradients belong to the gains of norms that work on a part of the sequence. Without
        this call the optimizer would sum the gradients in each of its operations, and scaling
        the summands rounds differently from scaling the sum.
        """
        for parameter in model.parameters() if self._parallelism.tp > 1 else ():
            gradient: Any = parameter.grad
            if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
                parameter.grad = gradient.redistribute(placements=cast(Any, parameter).placements)

    def settle(self) -> None:
        """Free all gathered parameters: an edit of a gathered copy would be lost."""
        for root in self._roots:
            for module in _sharded(root):
                module.reshard()


def _left_out(replicated: DistributedDataParallel) -> list[str]:
    """Return the trained parameters whose gradients replicas do not share.

    The list is DDP's copy: an object of a plugin may show other names when read again.
    """
    ignored, named = replicated.parameters_to_ignore, replicated.module.named_parameters()
    return [name for name, p in named if p.requires_grad and name in ignored]


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
