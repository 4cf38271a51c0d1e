"""``llmb workload``: sizes of the workloads, their origin, and published figures."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from llmb.cli import completion, workload_check, workload_new
from llmb.cli.tables import print_fitted, wide_option

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from llmb.workloads.published import Table as Published
    from llmb.workloads.recipes import RunRecipe


#: Width of a table outside of a terminal, in columns.
_PIPED_WIDTH = 160


@click.group("workload", short_help="List, show, write and check workloads.")
def command() -> None:
    """List the workloads; show one; write and check the file of your own workload."""


command.add_command(workload_new.command)
command.add_command(workload_check.command)


@command.command("list")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_workloads(wide: bool, as_json: bool) -> None:
    """List every workload: family, sizes, parameters, modes, memory of a training step.

    Sizes are layers / heads / key-value heads / hidden / feed-forward / sequence / vocabulary.
    Memory is the peak of llmb's own training step of one sequence; without training, the weights.
    Example for other steps and systems: llmb project job --workload llama-1.4b.

    \b
    llmb workload list
    llmb workload list --wide
    """
    from llmb.workloads import WORKLOADS
    from llmb.workloads.facts import facts

    found = [facts(workload) for workload in WORKLOADS.values()]
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    table = _table("name", "document", "family", "L/H/KV/d/F/T/V", "parameters", "modes", "BF16")
    for one in found:
        table.add_row(
            one["name"],
            one["document"],
            one["family"],
            _sizes(one["shapes"]),
            f"{one['parameters']:,}",
            ", ".join(one["modes"]),
            _bytes(one["memory_bytes"]["BF16"]),
        )
    least = ("document", "modes", "L/H/KV/d/F/T/V", "family")
    print_fitted(table, least, wide=wide, piped=_PIPED_WIDTH)


@command.command("show")
@click.argument("name", shell_complete=completion.workloads)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Show workload NAME: sizes, work and memory, published rows, and flaws of the original.

    NAME is a name of llmb workload list, or a file NAME.json of your own.

    \b
    llmb workload show llama-1.4b
    llmb workload show gpt2-1.5b --json
    llmb workload show mine.json
    """
    from rich.text import Text

    from llmb.cli.run import workload_of
    from llmb.workloads import find
    from llmb.workloads.facts import facts
    from llmb.workloads.published import tables_of

    known, definition = workload_of(name)
    found = facts(find(known, {}, definition))
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    print_sizes(found)
    console = _console()
    console.print(Text(_sources(), style="dim"))
    for document, one in tables_of(known):
        console.print(Text(f"\npublished: {one.title}, {document.hardware}", style="bold"))
        console.print(_published(one))
        why = "; ".join(text for text in (one.note, document.source) if text)
        console.print(Text(why, style="dim"))
    console.print()
    for note in found["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))


def print_sizes(found: Mapping[str, Any]) -> None:
    """Print the facts of a workload: parameters, sizes, memory, FLOPs by convention."""
    from rich.text import Text

    console = _console()
    console.print(Text(f"{found['name']}, {found['parameters']:,} parameters", style="bold"))
    table = _table("", "")
    table.show_header = False
    for key, value in _rows(found):
        table.add_row(key, Text(value))
    console.print(table)
    console.print()
    console.print(_work(found))
    console.print()


@command.command("recipes")
@wide_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recipes(wide: bool, as_json: bool) -> None:
    """List published commands for several devices, for llmb run --recipe NAME.

    Ranks are as published; with --preset debug every kind of parallelism has two ranks.

    \b
    llmb workload recipes
    llmb run --recipe nanotron-llama2-7b --preset debug
    """
    from llmb.workloads.recipes import RECIPES

    if as_json:
        click.echo(json.dumps([asdict(recipe) for recipe in RECIPES.values()], indent=1))
        return
    table = _table("name", "workload", "ranks", "shared", "batch", "precision", "")
    for recipe in RECIPES.values():
        table.add_row(
            recipe.name,
            recipe.workload,
            ", ".join(map(str, recipe.world_sizes)),
            _shared(recipe),
            f"{recipe.micro_batch_size} x {recipe.accumulate}",
            recipe.precision,
            "; ".join(text for text in (recipe.original, recipe.differs) if text),
        )
    least = ("", "workload", "precision", "shared", "batch")
    print_fitted(table, least, wide=wide, piped=_PIPED_WIDTH)


def _shared(recipe: RunRecipe) -> str:
    sizes = {"tp": recipe.tp, "pp": recipe.pp, "dp": recipe.replicas}
    stage = [] if recipe.zero is None else [f"zero {recipe.zero}"]
    return ", ".join([*(f"{name} {size}" for name, size in sizes.items() if size > 1), *stage])


def _table(*titles: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in titles:
        right = title in ("parameters", "BF16", "FLOPs a token")
        fold = title in ("", "counts")
        table.add_column(title, no_wrap=not fold, justify="right" if right else "left")
    return table


def _console() -> Console:
    """Return a console; in a pipe with 160 columns."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def _rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    recipe, shapes = found["recipe"], found["shapes"]
    optimizer = recipe["optimizer"]
    what = "llmb's training step of one sequence" if "train" in found["modes"] else "weights"
    trained = [
        f"{optimizer['name']}, lr {optimizer['lr']:g}, weight decay {optimizer['weight_decay']:g}",
        f"betas {optimizer['betas']}" if optimizer["name"] == "AdamW" else "",
        f"gradients clipped to {recipe['clip_grad_norm']:g}" if recipe["clip_grad_norm"] else "",
        "float32 weights, autocast" if recipe["mixed_precision"] else "",
    ]
    rows = [
        ("from", found["document_name"] or "a definition of your own"),
        ("family", found["family"]),
        ("modes", ", ".join(found["modes"])),
        ("shapes", ", ".join(f"{name} {value}" for name, value in shapes.items())),
        (
            f"memory, {what}",
            ", ".join(f"{name} {_bytes(size)}" for name, size in found["memory_bytes"].items()),
        ),
    ]
    if "train" in found["modes"]:
        rows.append(("trained with", "; ".join(text for text in trained if text)))
    if recipe["micro_batch_size"] is not None:
        batch = f"{recipe['micro_batch_size']} sequences"
        rows.append(("batch", f"{batch}, accumulated {recipe['accumulate']} times"))
    if found["world_size"] is not None:
        rows.append(("devices", str(found["world_size"])))
    return rows


def _work(found: Mapping[str, Any]) -> Table:
    from llmb.workloads.conventions import CONVENTIONS

    table = _table("convention", "FLOPs a token", "counts")
    for name, value in found["flops_per_token"].items():
        whose = "the document's own" if found["document"] else "in tables of llmb"
        own = f"   <- {whose}" if name == found["flops_convention"] else ""
        table.add_row(name, f"{value:,.0f}", CONVENTIONS[name].counts + own)
    return table


def _sources() -> str:
    """Return a line per convention with the source of the formula."""
    from llmb.workloads.conventions import CONVENTIONS

    return "\n".join(f"{name} is from: {one.source}" for name, one in CONVENTIONS.items())


def _published(published: Published) -> Table:
    table = _table(*published.labels, *(column.title for column in published.columns))
    for row in published.rows:
        values = (row.values.get(column.key) for column in published.columns)
        table.add_row(*row.labels, *("-" if value is None else f"{value:,g}" for value in values))
    return table


def _sizes(shapes: Mapping[str, Any]) -> str:
    heads = shapes["num_attention_heads"]
    sizes = (
        shapes["num_hidden_layers"],
        heads,
        shapes.get("num_key_value_heads", heads),
        shapes["hidden_size"],
        shapes["intermediate_size"],
        shapes["sequence_length"],
        shapes["vocab_size"],
    )
    return "/".join(map(str, sizes))


def _bytes(size: float) -> str:
    """Return ``size`` in decimal units."""
    return f"{size / 1e12:,.2f} TB" if size >= 1e12 else f"{size / 1e9:,.2f} GB"
