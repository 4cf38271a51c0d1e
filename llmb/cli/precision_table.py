"""Prints the measured precision of a run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmb.records.precision_recipe import (
    FORWARD,
    INPUT,
    WEIGHT,
    PrecisionRecipe,
    RecipeRow,
)
from llmb.records.printable import few

NOT_MEASURED = "not measured"
_DIRECTIONS = (FORWARD, INPUT, WEIGHT)
_ABOUT = (
    "What the probe of this run saw. A plugin that computes otherwise in its steps is caught by "
    "L1, not here."
)


def print_recipe(console: Console, recipe: PrecisionRecipe) -> None:
    """Print a table of products by direction, the optimizer state, and a line with the shares."""
    console.print(Text("\nmeasured precision: ").append(recipe.headline, "bold"), soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("product", no_wrap=True)
    for direction in _DIRECTIONS:
        table.add_column(direction)
    table.add_column("of FLOPs", justify="right", no_wrap=True)
    for product, group in groupby(recipe.rows, key=lambda row: row.product):
        rows = list(group)
        cells = [words([row for row in rows if row.direction == way]) for way in _DIRECTIONS]
        share = sum(row.flops_share for row in rows)
        table.add_row(product, *cells, f"{share:.1%}")
    console.print(table)
    state = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value, how in state_lines(recipe):
        state.add_row(Text(name), Text(value), Text(how, style="dim"))
    console.print(state)
    for why in reasons(recipe):
        console.print(Text(f"{NOT_MEASURED}: {why}", style="dim"), soft_wrap=True)
    console.print(Text(_ABOUT, style="dim"), soft_wrap=True)


def words(rows: list[RecipeRow]) -> str:
    """Return the formats of a product in a direction. Example: "FP8 in 10, BF16 in 2"."""
    if not rows:
        return "-"
    if len(rows) == 1:
        return rows[0].format or NOT_MEASURED
    return ", ".join(f"{row.format or NOT_MEASURED} in {row.layers}" for row in rows)


def state_lines(recipe: PrecisionRecipe) -> Iterator[tuple[str, str, str]]:
    """Yield name, value, and method of measurement of everything but products."""
    for row in recipe.state:
        yield row.name, row.value or NOT_MEASURED, row.how


def reasons(recipe: PrecisionRecipe) -> tuple[str, ...]:
    """Return each reason for unmeasured products once, with the products."""
    found: dict[str, list[str]] = {}
    for row in recipe.rows:
        if row.why is not None:
            found.setdefault(row.why, []).append(f"{row.product} {row.direction}")
    return tuple(f"{few(names, 6)}: {why}" for why, names in found.items())
