"""The ceiling of a device in a record: the rates of matrix products and of memory, alone."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen

Direction = Literal["forward", "grad_input", "grad_weight"]


class GemmCeiling(Frozen):
    """Best observed rate of one matrix product of the model, in one direction."""

    name: str
    direction: Direction
    m: int
    k: int
    n: int
    count: int
    best_s: float


class SquareProduct(Frozen):
    """Best observed time of a product of two square matrices, ``size`` to a side."""

    #: Plain tensors, or the own layout of the second library that torch brings for processors.
    #: Plain tensors, or the packed layout of torch's second library for processors.
    layout: Literal["plain", "packed"]
    size: int
    #: 1, or the number of a processor's cores if one core was timed: all cores are assumed equal.
    at_once: int = Field(ge=1)
    best_s: float


class SustainedProduct(Frozen):
    """The product that takes most of a step, repeated for ``seconds`` without a gap.

    A burst lasts 20 ms. A card with a power limit may be 5 to 10 % slower over two seconds.
    """

    name: str
    direction: Direction
    seconds: float = Field(gt=0)
    flops_per_second: float = Field(gt=0)


class Ceiling(Frozen):
    """The peak rates of the device on the model's own products, on an otherwise idle device."""

    precision: str
    tokens: int
    gemms: tuple[GemmCeiling, ...]
    #: FLOPs of all products of a step over the sum of their best times.
    flops_per_second: float
    memory_bytes_per_second: float
    #: Products at sizes that suit the device, not the model.
    squares: tuple[SquareProduct, ...] = ()
    #: Highest rate among all these products: no run should exceed the rate (rule K1).
    best_product_flops_per_second: float | None = None
    #: None on a processor, and in records of before 2026-11-24. ``flops_per_second``, and therefore
    #: ``fraction_of_ceiling``, is of best bursts.
    sustained: SustainedProduct | None = None

    @property
    def sustained_share(self) -> float | None:
        """The sustained product's rate over the rate of the same product's best burst, 0 to 1.

        None without a sustained product.
        """
        held = self.sustained
        for gemm in self.gemms:
            if held and (gemm.name, gemm.direction) == (held.name, held.direction):
                return held.flops_per_second * gemm.best_s / (2 * gemm.m * gemm.k * gemm.n)
        return None


class Ceilings(Frozen):
    """The ceiling before and after the run, on the same device."""

    before: Ceiling
    after: Ceiling
