"""Shared by the commands of ``llmb project``: types of values, and the printing of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion
from llmb.cli.amounts import Amount
from llmb.errors import UsageError

if TYPE_CHECKING:
    from llmb.workloads import Workload

COUNT = click.IntRange(min=1, max=10**12)
#: Shorter is no step, longer no number.
AMOUNT = Amount(min=1e-12, max=1e18)
_PIPED_WIDTH = 160
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
workload_option = click.option(
    "--workload",
    metavar="NAME|FILE.json",
    shell_complete=completion.workloads,
    help="Workload, of `llmb workload list`.",
)


@contextmanager
def printed(flags: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give a result to fill, with ``notes``, and print the result at the end.

    Raises:
        UsageError: the sizes are too large to compute with.
    """
    result: dict[str, Any] = {"notes": []}
    try:
        yield result
    except OverflowError:
        raise UsageError("these sizes are too large to compute with: give smaller ones") from None
    if flags["as_json"]:
        click.echo(json.dumps(result, indent=1))
    else:
        _print(result)


def workload_of_name(name: str | None) -> Workload:
    """Return the workload of ``--workload``.

    Raises:
        UsageError: the name is unknown.
    """
    from llmb.cli.run import workload_of
    from llmb.workloads import find

    if name is None:
        raise UsageError("whose step is it? name a --workload (llmb workload list)")
    known, definition = workload_of(name)
    return find(known, {}, definition)


def _print(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.cli.text import printable

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    if "parts" in result:
        from llmb.cli.project_job import show

        show(result, console)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    if "figures" in result:
        sizes = ", ".join(f"{name} {size:,}" for name, size in result["sizes"].items())
        devices = "1 device" if result["world_size"] == 1 else f"{result['world_size']:,} devices"
        about = f"b {result['global_batch_size']:,}, {devices}"
        console.print(Text(f"{printable(result['workload'])}: {sizes}, {about}", "bold"))
        for title in ("figure", "value", "unit", "formula"):
            table.add_column(
                title,
                justify="right" if title == "value" else "left",
                no_wrap=title != "formula",
                overflow="fold",
            )
        for one in result["figures"]:
            table.add_row(one["name"], number(one["value"]), one["unit"], Text(one["formula"]))
        console.print(table)
    else:
        for title in ("steps", "length", "rate", "per 100k steps", "node-hours"):
            table.add_column(title, justify="left" if title == "rate" else "right")
        for one in result["stages"]:
            table.add_row(
                f"{one['steps']:,}",
                f"{one['sequence_length']:,}",
                Text(printable(one["rate"])),
                number(one["node_hours_per_100k_steps"]),
                number(one["node_hours"]),
            )
        console.print(table)
        total = f"{number(result['node_hours'])} node-hours on {result['nodes']} nodes"
        batch = f"steps of {result['target_global_batch']:,} sequences"
        console.print(Text(f"{total}, {batch}", "bold"))
        console.print(Text(result["formula"], "dim"))
    for note in result["notes"]:
        console.print(Text(f"note: {printable(note)}", style="yellow"), soft_wrap=True)


def number(value: float) -> str:
    """Return ``value`` with six digits. Examples: ``12,345.6``, ``1.23457e+09``."""
    return (
        f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}" if value < 1e9 else f"{value:.6g}"
    )
