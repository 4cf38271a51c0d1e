"""Which way of multiplying 16-bit matrices is the faster one on this processor, by measurement.

Feature flags do not tell: torch multiplies bfloat16 fast with avx512_bf16, AMX, AVX-512 alone or
Arm's bf16, and number by number with AVX2; ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2``
makes a new processor behave like an old one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from timeit import repeat
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.plugin.builtin.wide import wide_linear

Way = Literal["native", "wide"]
_ROWS, _SIDE, _TRIES = 128, 512, 3


@cache
def faster_way(dtype: torch.dtype) -> Way:
    """Return how this processor is done sooner with a linear layer of ``dtype``, back and forth.

    The best of three tries of each way counts. They take 0.02 s in all where both ways are fast,
    and 0.3 s where torch multiplies number by number.
    """
    x, w = (torch.ones(rows, _SIDE, dtype=dtype, requires_grad=True) for rows in (_ROWS, _SIDE))
    return "native" if _best_s(F.linear, x, w) <= _best_s(wide_linear, x, w) else "wide"


def _best_s(linear: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> float:
    """Return the shortest time in seconds of ``linear`` and the gradients of both operands."""

    def both_ways() -> None:
        with torch.enable_grad():
            out = linear(x, w)
        torch.autograd.grad(out, (x, w), out.detach())

    return min(repeat(both_ways, number=1, repeat=_TRIES))
