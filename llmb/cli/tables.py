"""Tables that fit a terminal: columns are left out by importance, and no name is cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

#: Width of a column that folds, in characters, if the text is longer.
_FOLDED = 24


def print_fitted(table: Table, least: Sequence[str], *, wide: bool, piped: int) -> None:
    """Print ``table``; on a terminal without the columns that do not fit.

    Args:
        table: columns with ``no_wrap`` keep their width, other columns fold.
        least: titles of columns that may be left out, the least important first.
        wide: print every column, wider than the terminal if need be.
        piped: least width outside of a terminal, in characters.
    """
    console = Console(highlight=False)
    left_out = []
    if wide or not sys.stdout.isatty():
        least_width = console.width if wide else piped
        console = Console(highlight=False, width=max(least_width, _width(table, console)))
    for title in least:
        if _width(table, console) <= console.width:
            break
        table.columns = [column for column in table.columns if column.header != title]
        left_out.append(title)
    console.print(table)
    if left_out:
        named = ", ".join(title or "notes" for title in left_out)
        console.print(Text(f"left out for want of width: {named}; --wide shows all", style="dim"))


def _width(table: Table, console: Console) -> int:
    """Return the width of ``table`` in characters, columns that fold at 24 or less."""
    return sum(_column(column, console) + 2 for column in table.columns)


def _column(column: Column, console: Console) -> int:
    options = console.options.update(max_width=10_000)
    cells = (column.header, *column.cells)
    most = max(console.measure(cell, options=options).maximum for cell in cells)
    return most if column.no_wrap else min(most, _FOLDED)
