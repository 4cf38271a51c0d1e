"""Which way of multiplying 16-bit matrices is the faster one on this processor, by measurement.

Feature flags do not tell: torch multiplies bfloat16 fast with avx512_bf16, AMX, AVX-512 alone or
Arm's bf16, and number by number with AVX2; ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2``
makes a new processor behave like an old one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from timeit import timeit
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.plugin.builtin.wide import wide_linear

Way = Literal["native", "wide"]
#: Rows, side and tries of what is timed: where a short look is not clear, a longer one, of several
#: tries: a busy host leaves some of them alone.
_LOOKS = ((64, 256, 2), (128, 512, 7))
#: Between the ways' times where more tries cannot turn it round: number by number it is 10 or more.
_CLEAR = 5


@cache
def faster_way(dtype: torch.dtype) -> Way:
    """Return how this processor is done sooner with a linear layer of ``dtype``, back and forth.

    One core alone is timed: several wait for each other, and for whatever else runs beside them.
    The ways take turns, and the best try of each counts. That takes 0.04 s.
    """
    native_s = wide_s = math.inf
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for rows, side, tries in _LOOKS:
            x, w = (torch.ones(n, side, dtype=dtype, requires_grad=True) for n in (rows, side))
            native_s = wide_s = math.inf
            for number in range(tries):
                native_s = min(native_s, _once_s(F.linear, x, w))
                wide_s = min(wide_s, _once_s(wide_linear, x, w))
                if number and native_s > _CLEAR * wide_s:
                    return "wide"
    finally:
        torch.set_num_threads(threads)
    return "native" if native_s <= wide_s else "wide"


def faster_way_of(dtype: str) -> Way:
    """Return ``faster_way`` of torch's name of a type, such as "bfloat16"."""
    return faster_way(getattr(torch, dtype))


def _once_s(linear: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> float:
    """Return the seconds of ``linear`` and of the gradients of both operands."""

    def both_ways() -> None:
        with torch.enable_grad():
            out = linear(x, w)
        torch.autograd.grad(out, (x, w), out.detach())

    return timeit(both_ways, number=1)
