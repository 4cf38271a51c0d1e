"""The ceiling part by part: rate and time of each matrix product, and the rest of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmb.config import Mode
from llmb.records.ceiling import Ceiling, GemmCeiling
from llmb.records.run_record import RunRecord
from llmb.report.run_figures import REST, BarPart, colour


@dataclass(frozen=True)
class CeilingProduct:
    """One matrix product of the model, as timed alone, all directions together."""

    name: str
    #: Rows, inner size and columns; and how often a step of the model has the product.
    sizes: tuple[int, int, int]
    count: int
    #: FLOP/s of each direction; None where the record has no such direction.
    forward: float | None
    grad_input: float | None
    grad_weight: float | None
    #: FLOP/s of all directions together, and the share of the device's best product (0 to 1).
    flops_per_second: float
    of_best: float | None
    #: Seconds a step at these rates, and the share of the measured step; None of several ranks.
    seconds: float | None
    of_step: float | None


@dataclass(frozen=True)
class CeilingParts:
    """The products of a run's ceiling; ``budget`` divides the measured step, empty if it cannot."""

    products: tuple[CeilingProduct, ...]
    #: The better of the two ceilings, before or after the run.
    ceiling: Ceiling
    budget: tuple[BarPart, ...]


def ceiling_parts(record: RunRecord) -> CeilingParts | None:
    """Return the products of the better ceiling; None: no ceiling was measured.

    A step of one device is divided into the products at their best rates, and all else: attention,
    norms, optimizer, copies, and the time by which products were slower than alone. Example: a step
    of 22.1 s with 9.4 s of products at their best rates has 12.7 s of all else.
    """
    if record.ceilings is None:
        return None
    both = (record.ceilings.before, record.ceilings.after)
    best = max(both, key=lambda one: one.flops_per_second)
    scale, step_s = _scale(record, best), _step_s(record)
    found: dict[str, list[GemmCeiling]] = {}
    for gemm in best.gemms:
        if gemm.best_s > 0:
            found.setdefault(gemm.name, []).append(gemm)
    products = tuple(_product(name, of, best, scale, step_s) for name, of in found.items())
    return CeilingParts(products, best, tuple(_budget(products)))


def _scale(record: RunRecord, ceiling: Ceiling) -> float | None:
    """Return how often a step makes the products of the ceiling; None: no whole step is known."""
    alone = record.topology.world_size == 1 and not record.timing.step_tokens
    if not alone or record.workload.mode == Mode.GENERATE.value or ceiling.tokens < 1:
        return None
    return record.workload.tokens_per_step / ceiling.tokens


def _step_s(record: RunRecord) -> float:
    timing = record.timing
    return (timing.stop_ns - timing.start_ns) / 1e9 / timing.timed_steps


def _product(
    name: str, gemms: Sequence[GemmCeiling], best: Ceiling, scale: float | None, step_s: float
) -> CeilingProduct:
    rates = {one.direction: 2 * one.m * one.k * one.n / one.best_s for one in gemms}
    spent = sum(one.best_s * one.count for one in gemms)
    rate = sum(2 * one.m * one.k * one.n * one.count for one in gemms) / spent
    most = best.best_product_flops_per_second
    taken = None if scale is None else scale * spent
    first = gemms[0]
    return CeilingProduct(
        name=name,
        sizes=(first.m, first.k, first.n),
        count=first.count,
        forward=rates.get("forward"),
        grad_input=rates.get("grad_input"),
        grad_weight=rates.get("grad_weight"),
        flops_per_second=rate,
        of_best=rate / most if most else None,
        seconds=taken,
        of_step=taken / step_s if taken is not None and step_s > 0 else None,
    )


def _budget(products: Sequence[CeilingProduct]) -> list[BarPart]:
    parts = [
        BarPart(one.name, one.of_step, f"{one.of_step:.1%}", colour(n))
        for n, one in enumerate(products)
        if one.of_step is not None
    ]
    rest = 1 - sum(part.share for part in parts)
    if not parts or rest < 0:  # products were faster in the step than alone
        return []
    return [*parts, BarPart("all else", rest, f"{rest:.1%}", REST)]
