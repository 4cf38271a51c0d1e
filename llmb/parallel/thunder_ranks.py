"""Data parallelism under thunder, which compiles the full model: thunder's own DDP and FSDP.

Thunder's programs contain the collective calls. The calls use the process group of the mesh, with
the mesh's timeout.
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

#: Megabytes of gradients per all-reduce call: thunder's own default.
_BUCKET_MB = 25.0


def replicated(model: nn.Module, mesh: DeviceMesh) -> Any:
    """Return a program of ``model`` that averages gradients over ``mesh``.

    The parameters stay the same objects.
    """
    ddp = import_module("thunder.distributed.transforms.ddp_v2")
    program = import_module("thunder").jit(
        model, transforms=[ddp.DDPTransform(mesh.get_group(), _BUCKET_MB, broadcast_from=None)]
    )
    # Thunder made new parameters in the same memory, and would put the gradients in the new ones.
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
    """Shard the parameters of ``model`` over ``mesh`` and return the program.

    The program keeps plain tensors, padded to the same length on every rank. The parameters of
    ``model`` become DTensors in the memory of the plain tensors, and optimizer and audit read and
    write the DTensors as usual. ``again``: gather the parameters again for the backward pass (ZeRO
    stage 3); otherwise keep the gathered parameters after the forward pass (stage 2).
    """
    fsdp = import_module("thunder.distributed.transforms.fsdp_v2")
    kind = import_module("thunder.distributed").FSDPType
    # Thunder traces full shapes: copy the modules, and keep the same parameter objects.
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
    """Return the DTensor of ``whole`` in the memory of ``shard``; gradients go to the DTensor."""
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
