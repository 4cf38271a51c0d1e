"""Tensors sharded over ranks (torch's DTensor), and tensors of another pipeline stage.

Public functions also accept a tensor that is not sharded, and then use the tensor as usual.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def is_spread(value: Tensor) -> bool:
    """Tell whether ``value`` is a DTensor, without importing torch's distributed package."""
    if type(value) in (Tensor, nn.Parameter):  # a plugin can add attributes to these classes
        return False
    return hasattr(value, "placements") and hasattr(value, "device_mesh")


def is_elsewhere(value: Tensor) -> bool:
    """Tell whether ``value`` belongs to another stage of a pipeline, on other ranks.

    On this rank, ``value`` is then a meta tensor: a shape without memory.
    """
    return value.is_meta


def nothing_of(value: Tensor, device: torch.device) -> Tensor:
    """Return zeros of the shape of ``value``, which is elsewhere; memory: a single element."""
    return torch.zeros((), dtype=value.dtype, device=device).expand(value.shape)


def local(value: Tensor) -> Tensor:
    """Return the shard of ``value`` on this rank."""
    if not is_spread(value):
        return value
    spread: Any = value
    part: Tensor = spread.to_local()
    return part


def whole(value: Tensor) -> Tensor:
    """Return the full tensor ``value``: a collective call of all ranks with a shard."""
    if not is_spread(value):
        return value
    spread: Any = value
    found: Tensor = spread.full_tensor()
    return found


def write(value: Tensor, new: Tensor) -> None:
    """Overwrite ``value`` with the full tensor ``new``, which every rank passes."""
    if is_elsewhere(value):
        return
    if is_spread(value):
        part, first = local(value), first_of(value)
        at = tuple(slice(f, f + n) for f, n in zip(first, part.shape, strict=True))
        part.copy_(new[at])
    else:
        value.copy_(new)


def first_of(value: Tensor) -> tuple[int, ...]:
    """Return the offset of this rank's shard in ``value``, in each dimension."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    spread: Any = value
    _, first = compute_local_shape_and_global_offset(
        spread.shape, spread.device_mesh, spread.placements
    )
    return tuple(first)
