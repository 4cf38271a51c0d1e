"""Measures the faster way to multiply 16-bit matrices on this processor.

Feature flags do not decide: torch multiplies bfloat16 fast with avx512_bf16, AMX, AVX-512 alone or
Arm's bf16, and number by number with AVX2; ``ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2``
makes a new processor behave like an old processor.
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
#: Rows, side and tries of each measurement. The second, longer measurement runs if the first is not
#: clear; a busy host leaves some of the tries undisturbed.
_LOOKS = ((64, 256, 2), (128, 512, 7))
#: Ratio of times that more tries cannot reverse: products number by number take 10 times or more.
_CLEAR = 5


@cache
def faster_way(dtype: torch.dtype) -> Way:
    """Return the faster way for a linear layer of ``dtype``, forward and backward.

    Only one core is timed: several cores wait for each other, and for other load on the host.
    The two ways take turns, and the best try of each counts. The measurement takes 0.04 s.
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
    """Return ``faster_way`` for a dtype by torch's name, such as "bfloat16"."""
    return faster_way(getattr(torch, dtype))


def _once_s(linear: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> float:
    """Return the seconds of ``linear`` and of the gradients of both operands."""

    def both_ways() -> None:
        with torch.enable_grad():
            out = linear(x, w)
        torch.autograd.grad(out, (x, w), out.detach())

    return timeit(both_ways, number=1)
