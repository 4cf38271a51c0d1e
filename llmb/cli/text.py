"""Text for a terminal; that of strangers is made fit: it can move no cursor and hide no word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmb.records.printable import printable

if TYPE_CHECKING:
    from llmb.records.run_record import Ceiling

__all__ = ["printable", "size_of", "sustained_share"]


def size_of(count: int) -> str:
    """Return so many bytes in the largest binary unit that they fill."""
    power = min((count.bit_length() - 1) // 10, 3) if count else 0
    return f"{count / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def sustained_share(ceiling: Ceiling) -> float | None:
    """Return what the product that was sustained reaches of its own best burst, if one was."""
    held = ceiling.sustained
    for gemm in ceiling.gemms:
        if held and (gemm.name, gemm.direction) == (held.name, held.direction):
            return held.flops_per_second * gemm.best_s / (2 * gemm.m * gemm.k * gemm.n)
    return None
