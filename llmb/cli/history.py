"""``llmb history``: the runs made here, drawn over time, with change points."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llmb.cli.run_name import RunName
from llmb.cli.settings import runs_folder
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.history.changes import ChangePoint
    from llmb.history.line import HistoryLine
    from llmb.history.series import Series

#: Width outside of a terminal, in columns.
_PIPED_WIDTH = 100
#: Most series that are printed, those with the newest runs.
_MOST_SERIES = 20


class ShowByDefault(click.Group):
    """A group whose command is ``show`` unless another command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert ``show`` in front of its options."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group("history", cls=ShowByDefault, short_help="Show tokens/s over time, and change points.")
def command() -> None:
    """Show the runs made here over time, or add runs made elsewhere.

    Every finished `llmb run` adds a line to history.jsonl in its --output-dir. The line stays when
    the run directory is deleted. `llmb history` is the same as `llmb history show`.
    """


def _usual(ctx: click.Context, _: click.Parameter, file: Path | None) -> Path:
    return runs_folder(ctx) / "history.jsonl" if file is None else file


_file = click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    callback=_usual,
    metavar="FILE",
    help="The history [default: history.jsonl in the folder of runs].",
)


@command.command("add")
@click.argument("paths", metavar="RUN...", nargs=-1, required=True, type=RunName())
@click.option("--branch", metavar="NAME", help="Branch of the added runs [default: unknown].")
@click.option("--commit", metavar="HEX", help="Commit of the added runs, in full.")
@_file
def add(paths: tuple[Path, ...], branch: str | None, commit: str | None, file: Path) -> None:
    """Add runs made elsewhere: run directories or their names, records, bundles; none twice.

    \b
    llmb history add bundle.zip
    llmb history add runs/20261101T120000Z-llama-1.4b-BF16-cpu --branch main
    """
    import re

    from llmb.errors import UsageError
    from llmb.history import file as history_file
    from llmb.history.line import line_of_a_stranger
    from llmb.records.bundle import read_record
    from llmb.records.repository import Head

    if commit is not None and not re.fullmatch("[0-9a-f]{40,64}", commit):
        raise UsageError(f"--commit {commit!r}: give all 40 digits, as `git rev-parse HEAD` prints")
    head = Head(commit, branch)
    lines = [line_of_a_stranger(read_record(path), path.resolve().name, head) for path in paths]
    unique = list({line.run_id: line for line in lines}.values())
    added = history_file.append(file, unique, once=True)
    known = len(paths) - added
    there = f", {known} there already" if known else ""
    click.echo(f"{printable(str(file))}: {added} run{'' if added == 1 else 's'} added{there}")


@command.command("show")
@_file
@click.option("--workload", metavar="NAME", help="Only runs of this workload.")
@click.option("--precision", metavar="FORMAT", help="Only runs with this declared format.")
@click.option("--plugin", metavar="NAME", help="Only runs of this plugin.")
@click.option("--branch", metavar="NAME", help="Only runs of this branch.")
@click.option("--machine", metavar="TEXT", help="Only runs whose device or processor has TEXT.")
@click.option(
    "--last",
    type=click.IntRange(min=1, max=10_000),
    default=1000,
    metavar="N",
    help="The newest N runs of each series [default: 1000].",
)
@click.option(
    "--over",
    type=click.Choice(["commits", "dates"]),
    default="commits",
    help="Label runs by commit, or by date [default: commits].",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page to FILE."
)
def show(file: Path, last: int, over: str, as_json: bool, html: Path | None, **wanted: Any) -> None:
    """Draw each series of runs with 95 % intervals and change points, and print the newest runs.

    Runs of different work (model, settings, plugin) are never one series. Runs of several machines
    are drawn by their share of the ceiling.

    \b
    llmb history
    llmb history --workload llama-1.4b --branch main --last 50
    llmb history --html history.html
    """
    from llmb.history import changes
    from llmb.history import file as history_file
    from llmb.history.series import LineFilter, series_of

    history = history_file.read(file)
    found = series_of(history.lines, LineFilter(last=last, **wanted))
    points = [
        changes.change_points(one.values()) if changes.is_available() else () for one in found
    ]
    if html is not None:
        from llmb.cli import pages
        from llmb.report.history_page import history_page

        pages.put_for_user(html, history_page(found, points, over), say=not as_json)
    if as_json:
        data = {
            "schema": "llmb.history-series/1",
            "skipped": dict(history.skipped),
            "change_points_looked_for": changes.is_available(),
            "series": [_data(one, its) for one, its in zip(found, points, strict=True)],
        }
        click.echo(json.dumps(data, indent=1))
        return
    _print(found, points, over)
    if not found:
        click.echo(f"{printable(str(file))}: no run meets these conditions")
    if history.skipped:
        click.echo(f"llmb: {printable(str(file))}: {history.skipped_words}", err=True)
    enough = any(len(one.lines) >= 2 * changes.MIN_RUNS for one in found)
    if enough and not changes.is_available():
        click.echo("llmb: change points are not looked for: pip install 'llmb[history]'", err=True)


def _data(series: Series, points: Sequence[ChangePoint]) -> dict[str, Any]:
    from llmb.records.canonical import as_json

    return {
        "work": series.lines[0].work,
        "title": printable(series.title),
        "measure": series.measure,
        "machines": series.machines,
        "change_points": [
            {
                "run_id": series.lines[point.at].run_id,
                "commit": series.lines[point.at].commit,
                "before": point.before,
                "after": point.after,
                "change": point.change,
                "p_value": point.p_value,
            }
            for point in points
        ],
        "runs": [as_json(line) for line in series.lines],
    }


def _print(found: Sequence[Series], points: Sequence[Sequence[ChangePoint]], over: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from llmb.cli.history_chart import chart

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    shown = list(zip(found, points, strict=True))[:_MOST_SERIES]
    for n, (series, its) in enumerate(shown):
        if n:
            console.print()
        console.print(Text(printable(series.title), style="bold"))
        for line in chart(series, its, console.width, ascii_only=console.options.ascii_only):
            console.print(Text(line), soft_wrap=True)
        for point in its:
            console.print(Text(_step(series, point), style="bold"), soft_wrap=True)
        _print_table(console, series, over)
    if len(found) > len(shown):
        console.print(f"{len(found) - len(shown)} more series: choose with --workload, or --json")


def _step(series: Series, point: ChangePoint) -> str:
    """Return a change point in words."""
    from llmb.history.baseline import percent

    line = series.lines[point.at]
    where = f"commit {line.commit[:10]}" if line.commit else line.created_utc
    return printable(
        f"step of {percent(point.change)} at {where}: {_value(series, point.before)} to "
        f"{_value(series, point.after)}, p {point.p_value:.1g}"
    )


def _value(series: Series, value: float) -> str:
    from llmb.report.render import number

    return f"{value:.1%}" if series.measure == "share of ceiling" else f"{number(value)} tokens/s"


#: Rows of the table of a series on a screen of 24 lines.
_ROWS = 6


def _print_table(console: Any, series: Series, over: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in (
        ("commit" if over == "commits" else "date", "left"),
        ("tokens/s", "right"),
        ("95 % interval", "left"),
        ("of ceiling", "right"),
        ("verdict", "left"),
        ("branch", "left"),
    ):
        table.add_column(title, justify=justify, no_wrap=title != "branch")  # type: ignore[arg-type]
    for line in series.lines[-_ROWS:]:
        table.add_row(*(Text(printable(cell)) for cell in _cells(line, over)))
    more = len(series.lines) - _ROWS
    if more > 0:
        console.print(Text(f"the newest {_ROWS} of {len(series.lines)} runs (--json: all)", "dim"))
    console.print(table)


def _cells(line: HistoryLine, over: str) -> tuple[str, ...]:
    from llmb.measure.statistics import LEAST_SHOWN
    from llmb.report.history_page import label_of
    from llmb.report.render import number

    ends = line.ci95 if line.interval_values >= LEAST_SHOWN else None
    share = line.fraction_of_ceiling
    return (
        label_of(line, over),
        number(line.tokens_per_second),
        "none" if ends is None else f"{number(ends[0])} to {number(ends[1])}",
        "not measured" if share is None else f"{share:.1%}",
        line.verdict.value,
        line.branch or "",
    )
