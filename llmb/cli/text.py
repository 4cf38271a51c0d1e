"""Text for a terminal; that of strangers is made fit: it can move no cursor and hide no word."""

from __future__ import annotations

from llmb.records.printable import printable

__all__ = ["printable", "size_of"]


def size_of(count: int) -> str:
    """Return so many bytes in the largest binary unit that they fill."""
    power = min((count.bit_length() - 1) // 10, 3) if count else 0
    return f"{count / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"
