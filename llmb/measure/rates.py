"""What a processor attains on one of a model's own products, in the formats a run will need."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import torch
from torch import Tensor

from llmb.measure import clock
from llmb.records.run_record import Rates
from llmb.workloads.arithmetic import Gemm

#: Seconds after which no further round of a product's three directions begins.
_BUDGET_S = 1.2
_COPY_BYTES = 64 * 2**20


def measure_rates(gemm: Gemm, tokens: int, dtypes: Sequence[str]) -> Rates:
    """Return the rates of ``gemm`` for ``tokens`` rows in each of ``dtypes``, on the processor.

    A format takes 1.2 s and one round more: about four seconds in all where a round of the widest
    takes one. Memory is twice the largest weight in float64 at most.
    """
    return Rates(
        flops_per_second={name: _rate(gemm, tokens, getattr(torch, name)) for name in dtypes},
        bytes_per_second=_bandwidth(),
    )


def _rate(gemm: Gemm, tokens: int, dtype: torch.dtype) -> float:
    """Return FLOP/s of the median round; the first, which warms up, counts where it is alone."""
    x, w, y = (
        torch.full(size, 0.5, dtype=dtype)
        for size in ((tokens, gemm.k), (gemm.n, gemm.k), (tokens, gemm.n))
    )
    begin = clock.now_ns()
    spent_s = [_round_s(x, w, y)]
    while (clock.now_ns() - begin) / 1e9 < _BUDGET_S:
        spent_s.append(_round_s(x, w, y))
    return 3 * 2 * tokens * gemm.k * gemm.n / median(spent_s[1:] or spent_s)


def _round_s(x: Tensor, w: Tensor, y: Tensor) -> float:
    """Return the seconds of the forward product and of both gradients."""
    begin = clock.now_ns()
    torch.nn.functional.linear(x, w)
    y @ w
    y.t() @ x
    return (clock.now_ns() - begin) / 1e9


def _bandwidth() -> float:
    """Return bytes a second of the best of a few copies."""
    source = torch.ones(_COPY_BYTES // 4)
    target = torch.empty_like(source)
    best_s = min(_copy_s(source, target) for _ in range(4))
    return 2 * source.nbytes / best_s


def _copy_s(source: Tensor, target: Tensor) -> float:
    begin = clock.now_ns()
    torch.neg(source, out=target)
    return (clock.now_ns() - begin) / 1e9
