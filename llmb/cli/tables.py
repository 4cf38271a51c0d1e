"""Tables that fit a terminal: columns are left out by importance, and no name is cut."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

#: Width of a column that folds, in characters, if the text is longer.
_FOLDED = 24
#: Width of a table outside of a terminal, in characters.
PIPED_WIDTH = 120

wide_option = click.option(
    "--wide", is_flag=True, help="Show every column, wider than the terminal."
)


def print_fitted(
    table: Table, least: Sequence[str], *, wide: bool, piped: int = PIPED_WIDTH
) -> None:
    """Print ``table``; on a terminal without the columns that do not fit.

    Args:
        table: columns with ``no_wrap`` keep their width, other columns fold.
        least: titles of columns that may be left out, the least important first.
        wide: print every column, wider than the terminal if need be.
        piped: least width outside of a terminal, in characters.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    left_out = []
    if wide or not sys.stdout.isatty():
        least_width = console.width if wide else piped
        console = Console(
            highlight=False, width=max(least_width, _width(table, console, whole=wide))
        )
    for title in least:
        if _width(table, console) <= console.width:
            break
        table.columns = [column for column in table.columns if str(column.header) != title]
        left_out.append(title)
    console.print(table)
    if left_out:
        named = ", ".join(title or "notes" for title in left_out)
        console.print(Text(f"left out for want of width: {named}; --wide shows all", style="dim"))


def print_row(head: Text, text: str, *, wide: bool, indent: int) -> None:
    """Print ``head`` and ``text``; on a terminal folded at words, below each other.

    Args:
        head: the beginning of the line.
        text: the rest of the line, folded between words.
        wide: print one line, wider than the terminal if need be.
        indent: column of ``text`` in the folded lines, and the least width of ``head``.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if wide or not sys.stdout.isatty():
        head.pad_right(max(0, indent - len(head)))
        console.print(head.append(text, "not dim not bold"), soft_wrap=True)
        return
    row = Table.grid()
    row.add_column(no_wrap=True, min_width=indent)
    row.add_column(overflow="fold")
    row.add_row(head, Text(text))
    console.print(row)


def _width(table: Table, console: Console, *, whole: bool = False) -> int:
    """Return the characters of a line of ``table``, columns that fold at 24 unless ``whole``."""
    return sum(_column(column, console, whole=whole) + 2 for column in table.columns)


def _column(column: Column, console: Console, *, whole: bool) -> int:
    options = console.options.update(max_width=10_000)
    cells = (column.header, *column.cells)
    most = max(console.measure(cell, options=options).maximum for cell in cells)
    return most if column.no_wrap or whole else min(most, _FOLDED)
