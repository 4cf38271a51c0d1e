"""Measures a device's FLOP/s on the model's own matrix products, and the memory bandwidth."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from llmb import clock
from llmb.config import Mode, Precision, RunConfig
from llmb.families import Gemm
from llmb.formats import NARROW_BITS
from llmb.plugin.backend import Backend, memory_of
from llmb.plugin.builtin.host import compute_threads
from llmb.records.ceiling import Ceiling, Direction, GemmCeiling, SquareProduct, SustainedProduct
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import gemms

_COPY_BYTES = 256 * 2**20  # eight times a large last-level cache
_COPY_BYTES_A_SECOND = 128 * 2**20  # per second of budget: a first allocation of memory is slow
_COPY_SHARE = 8  # source and target each take at most 1/8 of the free memory
_BURST_S = 0.02  # products enqueued between two synchronisations take about this long
_MIN_BURSTS = 3
_ALIKE = 1.01  # largest quotient of the best three bursts at which measuring stops
_SUSTAINED_S = 2.0  # long enough for a power-limited card to slow down
#: The products that compute the logits: FP8 training keeps logits products in the wider format.
_HEADS = ("lm_head", "wte", "word_embeddings")
_SQUARES = (1024, 2048, 4096, 8192)
_CORE_SQUARE = 512  # about 1 ms on a core: ends before the scheduler switches
_SQUARE_SHARES = 4  # shares of the time for squares; a model product has one share

Product = Callable[[], Tensor]
Products = dict[Direction, Product]
Layout = Literal["plain", "packed"]


def measure_ceiling(
    backend: Backend, config: RunConfig, shape: Shape, tokens: int, seconds: float
) -> Ceiling:
    """Return the ceiling for ``tokens`` rows, spending about ``seconds``.

    Every weight product of the model is timed alone, with warm operands, in three directions:
    ``forward`` [tokens, k] x [k, n], ``grad_input`` and ``grad_weight`` (only ``forward`` counts
    if nothing is trained). The best burst counts. A real step moves more data, so the ceiling is an
    upper bound for torch's own products at the model's shapes. A vendor's library may be faster at
    the model's shapes, but hardly faster than the best product of any shape. Large square products
    are therefore timed as well, such as 8192 x 8192.
    """
    distinct = gemms(shape)
    budget_s = seconds / (3 * len(distinct) + 1 + _SQUARE_SHARES)
    timed: list[GemmCeiling] = []
    for gemm in distinct:
        every = _directions(backend, gemm, tokens, config.precision, config.device, budget_s)
        timed += [g for g in every if config.mode is Mode.TRAIN or g.direction == "forward"]
    squares = _squares(backend, config.precision, config.device, _SQUARE_SHARES * budget_s)
    flops = sum(2 * g.m * g.k * g.n * g.count for g in timed)
    rates = [2 * g.m * g.k * g.n / g.best_s for g in timed]
    rates += [2 * s.size**3 * s.at_once / s.best_s for s in squares]
    return Ceiling(
        precision=config.precision.name,
        tokens=tokens,
        gemms=tuple(timed),
        flops_per_second=flops / sum(g.best_s * g.count for g in timed),
        memory_bytes_per_second=_bandwidth(backend, config.device, seconds, budget_s),
        squares=squares,
        best_product_flops_per_second=max(rates),
        sustained=_sustained(backend, timed, config, min(seconds, _SUSTAINED_S)),
    )


def _sustained(
    backend: Backend, timed: Sequence[GemmCeiling], config: RunConfig, seconds: float
) -> SustainedProduct | None:
    """Return the product with the largest share of a step, repeated for ``seconds`` without a gap.

    None on a processor: the power limit already applies to the short bursts.
    """
    if backend.device_type == "cpu":
        return None
    most = max(timed, key=lambda gemm: gemm.best_s * gemm.count)
    product = _operations(most, most.m, config.precision, config.device)[most.direction]
    _once_s(backend, product)
    times = max(1, math.ceil(seconds / most.best_s))
    each_s = _burst_s(backend, product, times)
    return SustainedProduct(
        name=most.name,
        direction=most.direction,
        seconds=times * each_s,
        flops_per_second=2 * most.m * most.k * most.n / each_s,
    )


def _squares(
    backend: Backend, precision: Precision, device: str, budget_s: float
) -> tuple[SquareProduct, ...]:
    """Return timed square products, about ``budget_s`` seconds in all; on a processor, of one core.

    Example: on an accelerator sizes 1024, 2048, 4096 and 8192; on a processor 512.
    """
    if torch.device(device).type == "cpu":
        return _one_core(backend, precision, budget_s)
    return _whole_device(backend, precision, device, budget_s)


def _one_core(backend: Backend, precision: Precision, budget_s: float) -> tuple[SquareProduct, ...]:
    """Return square products of one core alone, with the number of usable cores as ``at_once``.

    All cores on one product would be the obvious measurement. But if another program takes one core
    for a moment, all other cores wait: on a busy host the result was up to seven times too low
    (docs/adr/0012). One core finds a quiet moment on any host, sooner for a shorter product.
    Example: 8 usable cores count as 8 times the rate of one core.
    """
    threads, logical = torch.get_num_threads(), os.cpu_count() or 1
    products = _square_products(_CORE_SQUARE, precision, "cpu")
    torch.set_num_threads(1)
    try:
        share_s = budget_s / len(products)
        times = {at: _best_s(backend, p, share_s, burst_s=0.0) for at, p in products.items()}
    finally:
        torch.set_num_threads(threads)
    cores = max(min(threads, logical), compute_threads())  # a vendor's library may have its own
    return tuple(
        SquareProduct(layout=layout, size=_CORE_SQUARE, at_once=cores, best_s=best_s)
        for layout, best_s in times.items()
    )


def _whole_device(
    backend: Backend, precision: Precision, device: str, budget_s: float
) -> tuple[SquareProduct, ...]:
    """Return square products of rising size, from 1024 to 8192, while time and memory suffice."""
    found: list[SquareProduct] = []
    for size in _SQUARES:
        if found:
            bursts_s = _MIN_BURSTS * found[-1].best_s * (size / found[-1].size) ** 3
            if bursts_s > budget_s or not _fits(backend, size, precision):
                break
        product = _square_products(size, precision, device)["plain"]
        best_s = _best_s(backend, product, budget_s / len(_SQUARES))
        found.append(SquareProduct(layout="plain", size=size, at_once=1, best_s=best_s))
    return tuple(found)


def _fits(backend: Backend, size: int, precision: Precision) -> bool:
    """Tell whether three ``size`` x ``size`` matrices fit in 1/8 of the device's free memory."""
    free = memory_of(backend).available_bytes
    needed = 3 * size**2 * getattr(torch, precision.dtype).itemsize
    return free is None or needed <= free // _COPY_SHARE


def _square_products(size: int, precision: Precision, device: str) -> dict[Layout, Product]:
    """Return a square product in every layout of operands that the device supports.

    On a processor torch has two libraries: ``plain`` operands (ordinary float32 tensors) go to the
    first library. ``packed`` operands, in oneDNN's layout, go to oneDNN, which can be twice as fast
    (docs/adr/0012).
    """
    dtype = getattr(torch, precision.dtype)
    x, w = (_random((size, size), dtype, device) for _ in range(2))
    if precision.bits <= NARROW_BITS:
        return {"plain": _eight_bit_products(x, w, w)["forward"]}
    found: dict[Layout, Product] = {"plain": _products(x, w, w)["forward"]}
    if x.device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        try:
            packed_x, packed_w = x.to_mkldnn(), w.to_mkldnn()
            torch.nn.functional.linear(packed_x, packed_w)
        except RuntimeError:  # oneDNN does not support the format on this processor
            return found
        found["packed"] = lambda: torch.nn.functional.linear(packed_x, packed_w)
    return found


def _directions(
    backend: Backend, gemm: Gemm, tokens: int, precision: Precision, device: str, budget_s: float
) -> list[GemmCeiling]:
    products = _operations(gemm, tokens, precision, device)
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


def _random(size: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Return normally distributed values, drawn on the host if the device has no random numbers."""
    try:
        return torch.empty(size, dtype=dtype, device=device).normal_()
    except NotImplementedError:
        return torch.empty(size).normal_().to(device, dtype)


def _operations(
    gemm: Gemm | GemmCeiling, tokens: int, precision: Precision, device: str
) -> Products:
    dtype = getattr(torch, precision.dtype)
    # Operands are drawn on the device: for a large batch the host would take minutes for y alone.
    sizes = ((tokens, gemm.k), (gemm.n, gemm.k), (tokens, gemm.n))
    x, w, y = (_random(size, dtype, device) for size in sizes)
    narrow = precision.bits <= NARROW_BITS and gemm.name not in _HEADS
    return _eight_bit_products(x, w, y) if narrow else _products(x, w, y)


def _products(x: Tensor, w: Tensor, y: Tensor) -> Products:
    return {
        "forward": lambda: torch.nn.functional.linear(x, w),  # [tokens, n]
        "grad_input": lambda: y @ w,  # [tokens, k]
        "grad_weight": lambda: y.t() @ x,  # [n, k]
    }


def _eight_bit_products(x: Tensor, w: Tensor, y: Tensor) -> Products:
    """Return products of 8-bit operands with one scale per tensor and BF16 results.

    8-bit products also stand for narrower formats, such as 4-bit: no torch has narrower products on
    every device. The products follow FP8 training: E4M3 for activations and weights, E5M2 for
    gradients, the right operand in column-major order, fast accumulation in the forward product.
    Casting is not timed.
    """
    one = torch.ones((), device=x.device)
    narrow, wide = _eight_bit_types(x.device)
    x8, w8, y8 = x.to(narrow), w.to(narrow), y.to(wide)
    w8_columns, x8_columns = w8.t().contiguous().t(), x8.t().contiguous().t()
    y8_turned = y8.t().contiguous()
    # A private function, but the only name of the scaled product in every torch from 2.8 on.
    scaled = functools.partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return {
        "forward": lambda: scaled(x8, w8.t(), use_fast_accum=True),  # [tokens, n]
        "grad_input": lambda: scaled(y8, w8_columns),  # [tokens, k]
        "grad_weight": lambda: scaled(y8_turned, x8_columns),  # [n, k]
    }


def _eight_bit_types(device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """Return the device's E4M3 and E5M2 types: the common types, or ``fnuz`` (no negative zero)."""
    common = (torch.float8_e4m3fn, torch.float8_e5m2)
    one = torch.ones((), device=device)
    square = torch.ones(16, 16, device=device).to(common[0])
    try:
        torch._scaled_mm(square, square.t(), one, one, out_dtype=torch.bfloat16)
    except (RuntimeError, ValueError):
        return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
    return common


def _bandwidth(backend: Backend, device: str, seconds: float, budget_s: float) -> float:
    free = memory_of(backend).available_bytes
    size = min(_COPY_BYTES, max(4, int(seconds * _COPY_BYTES_A_SECOND)))
    if free is not None:
        size = min(size, max(4, free // _COPY_SHARE))
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    # A negation, not a copy: a lazy device would alias source and target and move no bytes.
    best = _best_s(backend, lambda: torch.neg(source, out=target), budget_s)
    return 2 * source.nbytes / best  # one read, one write


def _best_s(
    backend: Backend, operation: Product, budget_s: float, burst_s: float = _BURST_S
) -> float:
    """Return the shortest time of ``operation`` in seconds: the best burst's mean.

    Measuring ends when the best three bursts agree within 1 %, or after ``budget_s`` seconds, but
    not before three bursts. Example: with enough budget, a product of 1 ms runs 20 times per burst.
    """
    deadline = clock.now_ns() + int(budget_s * 1e9)
    once = _once_s(backend, operation)
    # Three bursts should fit in the budget: a debug run has 20 ms for each product.
    repeats = max(1, math.ceil(min(burst_s, budget_s / _MIN_BURSTS) / once))
    bursts: list[float] = []
    while not _is_enough(bursts) and (len(bursts) < _MIN_BURSTS or clock.now_ns() < deadline):
        bursts.append(_burst_s(backend, operation, repeats))
    return min([once, *bursts])


def _is_enough(bursts: Sequence[float]) -> bool:
    """Tell whether the best three bursts agree within 1 %: more bursts would hardly be faster."""
    best = sorted(bursts)[:_MIN_BURSTS]
    return len(best) == _MIN_BURSTS and best[-1] <= _ALIKE * best[0]


def _once_s(backend: Backend, operation: Product) -> float:
    """Return the shorter of two runs in seconds: the first compiles and warms up."""
    return min(_burst_s(backend, operation, 1) for _ in range(2))


def _burst_s(backend: Backend, operation: Product, repeats: int) -> float:
    backend.synchronize()
    begin = clock.now_ns()
    for _ in range(repeats):
        result = operation()  # kept: a lazy device skips an operation without a live result
        backend.step_end()
    backend.synchronize()
    del result
    return (clock.now_ns() - begin) / 1e9 / repeats
