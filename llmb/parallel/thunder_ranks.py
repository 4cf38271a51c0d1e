"""What ranks share where thunder compiles the whole model: its own DDP, its own FSDP.

Its programs contain the collective calls themselves. They are with the group of the mesh, which
waits no longer than was asked for.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

#: Megabytes of gradients that are added up by one call: thunder's own default.
_BUCKET_MB = 25.0


def replicated(model: nn.Module, mesh: DeviceMesh) -> Any:
    """Return the program of ``model`` that averages gradients over ``mesh``.

    The parameters stay the same objects.
    """
    ddp = import_module("thunder.distributed.transforms.ddp_v2")
    program = import_module("thunder").jit(
        model, transforms=[ddp.DDPTransform(mesh.get_group(), _BUCKET_MB, broadcast_from=None)]
    )
    # It made parameters of its own that share memory with these; gradients would be theirs.
    for name in program._overrides_parameters:
        program._overrides_parameters[name] = model.get_parameter(name)
    return program


def silence() -> AbstractContextManager[None]:
    """Surround passes of ``replicated`` after which gradients are not averaged."""
    found: AbstractContextManager[None] = import_module(
        "thunder.distributed"
    ).skip_data_parallel_grad_sync()
    return found


def sharded(model: nn.Module, mesh: DeviceMesh, device: torch.device, *, again: bool) -> Any:
    """Return the program of ``model`` with parameters spread over ``mesh``, and spread them.

    The program keeps plain tensors, padded to one length. The parameters of ``model`` become
    DTensors in their memory, which optimizer and audit read and write as any others. ``again``
    gathers for the backward pass again (ZeRO stage 3), otherwise they are kept for it (2).
    """
    fsdp = import_module("thunder.distributed.transforms.fsdp_v2")
    kind = import_module("thunder.distributed").FSDPType
    # Traced are whole shapes: of modules that have the parameters without memory.
    whole = dict(model.named_parameters())
    shapes = copy.deepcopy(model, {id(p): p for p in (*whole.values(), *model.buffers())})
    sharding = fsdp.FSDPTransform(
        device=device,
        sharding_strategy=kind.ZERO3 if again else kind.ZERO2,
        release_original_parameters=True,
        process_group=mesh.get_group(),
    )
    program = import_module("thunder").jit(shapes, transforms=[sharding])
    spread = {
        id(parameter): _over(program.get_parameter(name), parameter, mesh)
        for name, parameter in whole.items()
    }
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = spread[id(parameter)]
    return program


def _over(shard: Tensor, whole: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    """Return the DTensor of ``whole`` in the memory of ``shard``, to which gradients go."""
    rows = len(whole) - mesh.get_local_rank() * len(shard)
    mine = slice(0, max(0, min(rows, len(shard))))  # the rest is padding
    shape, stride = whole.shape, whole.stride()

    def spread(value: Tensor) -> DTensor:
        return DTensor.from_local(
            value[mine], mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )

    parameter = nn.Parameter(spread(shard.detach()), requires_grad=whole.requires_grad)
    if whole.requires_grad:
        hook = partial(_hand_over, parameter, spread)
        shard.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return parameter


def _hand_over(parameter: nn.Parameter, spread: Any, shard: Tensor) -> None:
    gradient = spread(cast(Tensor, shard.grad))
    shard.grad = None
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad += gradient
