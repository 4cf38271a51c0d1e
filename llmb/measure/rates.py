"""Measures a processor's FLOP/s on one of a model's own products, in the formats of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llmb import clock
from llmb.families import Gemm
from llmb.records.run_record import Rates

#: ``_BUDGET_S``: seconds after which no further round of a product's three directions begins.
#: ``_WARM_S``: seconds of warmup on all cores before: the first second of a shared host is slower
#: (0.09 instead of 0.13 TFLOP/s were measured).
_BUDGET_S, _WARM_S = 1.0, 1.0
_COPY_BYTES = 64 * 2**20


def measure_rates(gemm: Gemm, tokens: int, dtypes: Sequence[str]) -> Rates:
    """Return the rates of ``gemm`` for ``tokens`` rows in each of ``dtypes``, on the processor.

    Each format takes one second plus one round, and the first format a second of warmup: about five
    seconds in all if a round of the widest format takes one second. Memory is at most twice the
    largest weight in float64. Example: rates in bfloat16 and float32 for a run in BF16.
    """
    rates = {
        name: _rate(gemm, tokens, getattr(torch, name), 0.0 if number else _WARM_S)
        for number, name in enumerate(dict.fromkeys(dtypes))
    }
    return Rates(flops_per_second=rates, bytes_per_second=_bandwidth())


def _rate(gemm: Gemm, tokens: int, dtype: torch.dtype, warm_s: float) -> float:
    """Return the FLOP/s of the best round, after at least one round and ``warm_s`` of warmup."""
    x, w, y = (
        torch.full(size, 0.5, dtype=dtype)
        for size in ((tokens, gemm.k), (gemm.n, gemm.k), (tokens, gemm.n))
    )
    _rounds_s(x, w, y, warm_s)
    best_s = min(_rounds_s(x, w, y, _BUDGET_S))
    return 3 * 2 * tokens * gemm.k * gemm.n / best_s


def _rounds_s(x: Tensor, w: Tensor, y: Tensor, budget_s: float) -> list[float]:
    """Return the seconds of each round begun within ``budget_s``, at least one round."""
    begin = clock.now_ns()
    spent_s = [_round_s(x, w, y)]
    while (clock.now_ns() - begin) / 1e9 < budget_s:
        spent_s.append(_round_s(x, w, y))
    return spent_s


def _round_s(x: Tensor, w: Tensor, y: Tensor) -> float:
    """Return the seconds of the forward product and of both gradients."""
    begin = clock.now_ns()
    torch.nn.functional.linear(x, w)
    y @ w
    y.t() @ x
    return (clock.now_ns() - begin) / 1e9


def _bandwidth() -> float:
    """Return the bytes per second, read plus written, of the best of four negated copies."""
    source = torch.ones(_COPY_BYTES // 4)
    target = torch.empty_like(source)
    best_s = min(_copy_s(source, target) for _ in range(4))
    return 2 * source.nbytes / best_s


def _copy_s(source: Tensor, target: Tensor) -> float:
    begin = clock.now_ns()
    torch.neg(source, out=target)
    return (clock.now_ns() - begin) / 1e9
