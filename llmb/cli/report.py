"""``llmb report``: a source document's own tables, published beside measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.report.document import Report
    from llmb.report.runs import Run

#: Short names of the documents; a test holds them to those with published tables.
DOCUMENTS = ("litgpt", "llm-train-bench", "nanotron", "nemo", "alcf", "gpt-bench")


@click.command("report", short_help="Show a source document's tables, published beside measured.")
@click.argument("paths", metavar="[RUN_DIR_OR_RECORD]...", nargs=-1, type=Path)
@click.option(
    "--like",
    "names",
    type=click.Choice(DOCUMENTS),
    multiple=True,
    required=True,
    help="Whose tables; repeat for more.",
)
@click.option("--debug", is_flag=True, help="Show debug runs, too; they are labelled.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--csv", "as_csv", is_flag=True, help="Print comma-separated values, a figure a line."
)
def command(
    paths: tuple[Path, ...], names: tuple[str, ...], debug: bool, as_json: bool, as_csv: bool
) -> None:
    """Show a source document's own tables, with what was measured beside what was published.

    Of every record at the paths (run directories, records, bundles, folders of them); without any,
    of those under runs/ and submissions/. Of several runs of a row the fastest is shown. Markdown
    in a pipe. What was published is of other people's hardware: it is no yardstick.

    \b
    Examples:
      llmb report --like litgpt
      llmb report --like nemo --like nanotron runs/20261101T120000Z-nemo-bert-base-BF16-cpu
      llmb report --like alcf --debug > alcf.md
      llmb report --like llm-train-bench --csv > table.csv
    """
    from llmb.report import render
    from llmb.report.document import report
    from llmb.workloads.published import documents

    if as_json and as_csv:
        raise click.UsageError("--json and --csv: choose one")
    runs = _runs(paths)
    reports = [
        (name, report(name, documents()[name], runs, debug=debug)) for name in dict.fromkeys(names)
    ]
    if as_json:
        click.echo(json.dumps([render.as_data(name, one) for name, one in reports], indent=1))
    elif as_csv:
        click.echo(render.comma_separated(reports), nl=False)
    elif sys.stdout.isatty():
        for _, one in reports:
            _print(one)
    else:
        click.echo("\n".join(render.markdown(one) for _, one in reports), nl=False)


def _runs(paths: tuple[Path, ...]) -> list[Run]:
    """Return every run that can be read; a line on stderr for each that cannot."""
    from llmb.errors import BundleRefusedError
    from llmb.report import collect
    from llmb.report.runs import run_of

    found = collect.collect(paths) if paths else collect.collect_usual(Path())
    runs, refused = [], list(found.refused)
    for record in found.records:
        try:
            runs.append(run_of(record))
        except BundleRefusedError as error:
            refused.append(str(error))
    for line in refused:
        click.echo(f"llmb: passed over {printable(line)}", err=True)
    return runs


def _print(report: Report) -> None:
    """Print ``report`` on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.report import render

    console = Console(highlight=False)
    console.print(Text(printable(report.document.name), style="bold"))
    console.print(Text(printable(render.heading(report)), style="dim"))
    for section in report.sections:
        console.print(Text(f"\n{printable(section.title)}", style="bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        labels = len(section.labels)
        titles = (*render.titles(section)[:-1], "run")
        for n, title in enumerate(titles):
            figure = labels <= n < len(titles) - 1
            table.add_column(Text(title), justify="right" if figure else "left", overflow="fold")
        measured: list[str] = []  # what each was measured on is too long for a cell
        for line in section.lines:
            *cells, where = render.cells(line)
            if where:
                measured.append(f"[{len(measured) + 1}] {where}")
            mark = f"[{len(measured)}]" if where else ""
            table.add_row(*(Text(printable(cell)) for cell in (*cells, mark)))
        console.print(table)
        for text in measured:
            console.print(Text(printable(text)))
        for note in section.notes:
            console.print(Text(printable(note), style="dim"))
    for note in report.notes:
        console.print(Text(f"\nnote: {printable(note)}", style="yellow"))
