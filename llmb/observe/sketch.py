"""Reduce a tensor to a thousand numbers that preserve length and distances to other tensors.

Elements are multiplied by random signs, one per row and one per column, and folded into a square of
sums. For any two tensors, the expected squared distance of the sketches equals the squared distance
of the tensors, wherever the tensors differ: a single wrong column shows as well as wrong rounding
everywhere. (A random sample would miss the column.)
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.records.seeds import derive

SIDE = 32
#: Number of parameters up to which each sketch has the full side. With more parameters, sketches
#: are smaller: a bundle keeps its size (docs/adr/0023).
_AT_FULL_SIDE = 160
_BLOCK_ELEMENTS = 2**24  # elements per block
_NARROW_BYTES = 2


def side_for(parameters: int) -> int:
    """Return the side of each sketch for a model with ``parameters`` parameters."""
    return min(SIDE, max(1, math.isqrt(SIDE * SIDE * _AT_FULL_SIDE // max(1, parameters))))


def sketch(value: Tensor, seed: int, name: str, side: int = SIDE) -> Tensor:
    """Return the sketch of ``value``, float32 on the CPU, at most ``side``² numbers.

    Signs are derived from ``seed`` and ``name`` only. The relative error of a distance is about 1
    part in ``side`` for differences spread over the tensor (3 % at 32), and about 1 part in the
    square root of ``side`` for a difference of rank 1 (17 %). A tensor with no more numbers than a
    sketch is kept unchanged.
    """
    value = value.detach()
    if value.numel() <= side * side:
        # A copy, for the plugin may write into a gradient's memory later.
        return value.contiguous().to("cpu", torch.float32, copy=True).flatten()
    if value.dim() < 2:
        value = F.pad(value, (0, -value.numel() % side)).view(-1, side)
    rows = value.reshape(value.shape[0], -1)
    generator = torch.Generator().manual_seed(derive("sketch", seed, name))
    # Sums of 16-bit numbers are exact enough in float32; sums of float32 numbers are not.
    wide = torch.float32 if value.element_size() <= _NARROW_BYTES else torch.float64
    left, right = (_signs(n, generator) for n in rows.shape)
    folded = torch.zeros(side, rows.shape[1], dtype=wide)
    step = max(side, _BLOCK_ELEMENTS // rows.shape[1] // side * side)
    for begin in range(0, rows.shape[0], step):
        block = rows[begin : begin + step].contiguous().to("cpu")
        signed = block * left[begin : begin + step, None].to(block.dtype)  # exact
        signed = F.pad(signed, (0, 0, 0, -signed.shape[0] % side))
        folded += signed.view(-1, side, signed.shape[1]).sum(0, dtype=wide)
    folded = F.pad(folded * right.to(wide), (0, -folded.shape[1] % side))
    return folded.view(side, -1, side).sum(1).float().flatten()


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (count,), generator=generator) * 2 - 1
