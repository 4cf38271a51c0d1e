"""What a device attains on the model's own matrix products, and its memory bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from llmb.config import RunConfig
from llmb.measure import clock
from llmb.plugin.backend import Backend
from llmb.records.run_record import Ceiling, GemmCeiling
from llmb.reference.shapes import LlamaShape
from llmb.workloads.arithmetic import Gemm, gemms

Direction = Literal["forward", "grad_input", "grad_weight"]
_COPY_BYTES = 256 * 2**20  # eight times a large last-level cache
_COPY_SHARE = 8  # at most one part in so many of what is free, twice: source and target
_BURST_S = 0.02  # products enqueued between two synchronisations take about this long
_MIN_BURSTS = 3


def measure_ceiling(
    backend: Backend, config: RunConfig, shape: LlamaShape, tokens: int, seconds: float
) -> Ceiling:
    """Return the ceiling for ``tokens`` rows, spending about ``seconds``.

    Every weight product of the model is timed alone, in its three directions, operands warm; the
    best burst counts. A real step moves more data, so this is a bound from above.
    """
    dtype = getattr(torch, config.precision.dtype)
    distinct = gemms(shape)
    budget_s = seconds / (3 * len(distinct) + 1)
    timed: list[GemmCeiling] = []
    for gemm in distinct:
        timed += _directions(backend, gemm, tokens, dtype, config.device, budget_s)
    flops = sum(2 * g.m * g.k * g.n * g.count for g in timed)
    return Ceiling(
        precision=config.precision.name,
        tokens=tokens,
        gemms=tuple(timed),
        flops_per_second=flops / sum(g.best_s * g.count for g in timed),
        memory_bytes_per_second=_bandwidth(backend, config.device, budget_s),
    )


def _directions(
    backend: Backend, gemm: Gemm, tokens: int, dtype: torch.dtype, device: str, budget_s: float
) -> list[GemmCeiling]:
    x = torch.randn(tokens, gemm.k).to(device, dtype)
    w = torch.randn(gemm.n, gemm.k).to(device, dtype)
    y = torch.randn(tokens, gemm.n).to(device, dtype)
    products: dict[Direction, Callable[[], Tensor]] = {
        "forward": lambda: torch.nn.functional.linear(x, w),  # [tokens, n]
        "grad_input": lambda: y @ w,  # [tokens, k]
        "grad_weight": lambda: y.t() @ x,  # [n, k]
    }
    return [
        GemmCeiling(
            name=gemm.name,
            direction=direction,
            m=tokens,
            k=gemm.k,
            n=gemm.n,
            count=gemm.count,
            best_s=_best_s(backend, product, budget_s),
        )
        for direction, product in products.items()
    ]


def _bandwidth(backend: Backend, device: str, budget_s: float) -> float:
    free = backend.memory().available_bytes
    size = _COPY_BYTES if free is None else min(_COPY_BYTES, max(4, free // _COPY_SHARE))
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    # Not a copy: a device that records operations would alias the two and move nothing.
    best = _best_s(backend, lambda: torch.neg(source, out=target), budget_s)
    return 2 * source.nbytes / best  # one read, one write


def _best_s(backend: Backend, operation: Callable[[], Tensor], budget_s: float) -> float:
    """Return the shortest time of ``operation`` in seconds, mean of a burst, best of the bursts."""
    deadline = clock.now_ns() + int(budget_s * 1e9)
    once = min(_burst_s(backend, operation, 1) for _ in range(2))
    repeats = max(1, math.ceil(_BURST_S / once))
    best, bursts = once, 0
    while bursts < _MIN_BURSTS or clock.now_ns() < deadline:
        best = min(best, _burst_s(backend, operation, repeats))
        bursts += 1
    return best


def _burst_s(backend: Backend, operation: Callable[[], Tensor], repeats: int) -> float:
    backend.synchronize()
    begin = clock.now_ns()
    for _ in range(repeats):
        result = operation()  # kept: a device that records operations skips what nobody holds
        backend.step_end()
    backend.synchronize()
    del result
    return (clock.now_ns() - begin) / 1e9 / repeats
