"""Pipelines on torch.distributed.pipelining: each rank has some layers, run by a schedule.

The schedule is called like a model. A call takes a batch, runs forward and backward for every
micro-batch, leaves the gradients in the parameters, and returns the loss. Example: with two ranks
and 16 layers, rank 0 has layers 0 to 7 and rank 1 has layers 8 to 15 (schedule 1F1B).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.nn.utils import get_total_norm

from llmb.config import Parallelism, RunConfig
from llmb.errors import UnavailableError, UsageError
from llmb.parallel.mesh import Mesh
from llmb.parallel.shards import local, whole
from llmb.reference.llama import Llama, LlamaModel, wide_dtype
from llmb.reference.loss import causal_loss


class Pipeline:
    """The pipeline stages of this rank, and the owner rank of every parameter.

    All parameters keep their names in the model. Parameters of remote stages are meta tensors:
    tensors with a shape and without memory.
    """

    def __init__(self, model: nn.Module, config: RunConfig, mesh: Mesh) -> None:
        """Cut ``model``, in place.

        Raises:
            UnavailableError: this version of torch cannot pass DTensors between stages.
            UsageError: a parameter of the model belongs to no stage.
        """
        if "get_mesh" not in signature(PipelineStage).parameters:
            raise UnavailableError(
                f"--pp {config.parallelism.pp}: torch {torch.__version__} is too old: use 2.13"
            )
        self._how, self._parts = config.parallelism, config.accumulate
        self._device, self._mesh = torch.device(config.device), mesh
        self._place = mesh.place("pp")
        self._group = mesh.part("pp").get_group()
        self._owner: dict[str, int] = {}
        parts = parts_of(model, self._how)
        for path, stage in parts.items():
            owner = self._how.rank_of(stage)
            part = model.get_submodule(path)
            self._owner |= {f"{path}.{name}": owner for name, _ in part.named_parameters()}
            if owner != self._place:
                part.to("meta")
        strangers = {name for name, _ in model.named_parameters()} - self._owner.keys()
        if strangers:
            raise UsageError(
                f"--pp {self._how.pp}: parameter {min(strangers)} is of no stage: the plugin's "
                "post-processing has put it there; use another option of the plugin"
            )
        assert isinstance(model, Llama)
        #: This rank's stages, by stage number in the full pipeline.
        self.stages: dict[int, Llama] = {
            stage: stage_of(model, {path for path, its in parts.items() if its == stage})
            for stage in range(self._how.stages)
            if self._how.rank_of(stage) == self._place
        }

    def program(self) -> PipelineProgram:
        """Return the schedule over the stages, after the last change to the modules."""
        return PipelineProgram(
            self.stages, self._how, self._parts, self._device, self._mesh.part("pp"), self._slices
        )

    def _slices(self, names: tuple[str, ...], layout: object) -> DeviceMesh:
        """Return the mesh of the states between stages: the tensor-parallel ranks."""
        return self._mesh.part("tp")

    def share(self, name: str, value: Tensor | None, like: Tensor) -> Tensor | None:
        """Broadcast ``value`` from the rank that owns parameter ``name``: a collective call.

        ``like`` has the shape and dtype of the value. Return None if the owner's value is None.
        """
        owner = self._owner[name]
        there = torch.tensor(value is not None, dtype=torch.int32, device=self._device)
        dist.broadcast(there, group=self._group, group_src=owner)
        if not there:
            return None
        if value is None or owner != self._place:
            value = torch.empty(like.shape, dtype=like.dtype, device=self._device)
        value = value.contiguous()
        dist.broadcast(value, group=self._group, group_src=owner)
        return value

    def clip_grad_norm(self, model: nn.Module, most: float) -> None:
        """Scale the gradients of all stages to a total norm of at most ``most``: a collective call.

        The formula is that of ``torch.nn.utils.clip_grad_norm_``, which sees only the gradients of
        this rank.
        """
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = whole(get_total_norm(gradients)).to(self._device)
        square = norm.to(wide_dtype(norm)) ** 2
        dist.all_reduce(square, group=self._group)
        factor = (most / (square.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            part = local(gradient)
            part.mul_(factor.to(part.dtype))


class PipelineProgram:
    """A pipeline schedule, called like the full model."""

    def __init__(
        self,
        stages: dict[int, Llama],
        how: Parallelism,
        parts: int,
        device: torch.device,
        ranks: DeviceMesh,
        slices: Callable[..., DeviceMesh],
    ) -> None:
        """Prepare to run ``stages`` of this rank on ``parts`` micro-batches, with ``ranks``."""
        self._device, self._group = device, ranks.get_group()
        self._last = how.rank_of(how.stages - 1)
        some = next(p for stage in stages.values() for p in stage.parameters())
        self._dtype = wide_dtype(some)  # dtype of the loss, possibly computed on another rank
        made = [
            PipelineStage(stage, number, how.stages, device, group=self._group, get_mesh=slices)
            for number, stage in stages.items()
        ]

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            return causal_loss(logits, labels) / parts

        kind: Any = get_schedule_class(how.schedule)
        several = issubclass(kind, PipelineScheduleMulti)
        # Divide the loss by the micro-batches, like the train loop, instead of the gradients.
        self._schedule = kind(made if several else made[0], parts, loss, scale_grads=False)

    def __call__(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Compute gradients for ``ids`` and ``labels`` ``[B, T]``; return the loss.

        All ranks of a pipeline pass the same arguments and get the same loss. Calling ``backward``
        on the loss changes no gradient: the gradients are already in the parameters.
        """
        losses: list[Tensor] = []
        try:
            self._schedule.step(ids, target=labels, losses=losses, return_outputs=False)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            raise error.__cause__ from None  # the error of the stage, without tensors
        if losses:
            total = torch.stack([whole(loss.detach()) for loss in losses]).sum().to(self._dtype)
        else:
            total = torch.zeros((), dtype=self._dtype, device=self._device)
        dist.broadcast(total, group=self._group, group_src=self._last)
        return total.requires_grad_()


def parts_of(model: nn.Module, how: Parallelism) -> dict[str, int]:
    """Return the stage number of each part of ``model``. Example: ``{"model.layers.0": 0}``."""
    inner = getattr(model, "model", None)
    if (
        not isinstance(model, Llama)
        or not isinstance(inner, LlamaModel)
        or "forward" in vars(model)
    ):
        raise UsageError(
            f"--pp {how.pp}: after the plugin's post-processing the model is a "
            f"{type(model).__name__} that cannot be cut into stages: use another option of the "
            "plugin, or --dp-shard"
        )
    layers, last = list(inner.layers), how.stages - 1
    found = {
        f"model.layers.{name}": number * how.stages // len(layers)
        for number, name in enumerate(layers)
    }
    return {"model.embed_tokens": 0, **found, "model.norm": last, "lm_head": last}


def stage_of(model: Llama, paths: set[str]) -> Llama:
    """Return ``model`` reduced to the parts at ``paths``: the same modules, under new roots."""
    stage: Llama = _shallow(model)
    inner, layers = _shallow(model.model), _shallow(model.model.layers)
    for name in list(layers):
        if f"model.layers.{name}" not in paths:
            del layers[name]
    inner.layers, stage.model = layers, inner
    if "model.embed_tokens" not in paths:
        inner.embed_tokens = None
    if "model.norm" not in paths:
        inner.norm = stage.lm_head = None
    return stage


def _shallow(module: Any) -> Any:
    """Return a shallow copy of ``module``: shared submodules and hooks, in new dictionaries."""
    found = copy(module)
    for name, value in vars(module).items():
        if isinstance(value, (dict, OrderedDict, set)):
            vars(found)[name] = copy(value)
    return found
