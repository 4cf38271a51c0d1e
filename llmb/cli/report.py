"""``llmb report``: the ranking of bundles, or a source document's own tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.evidence import evidence_option
from llmb.cli.leaderboard import FORMATS, rank, write
from llmb.cli.tables import print_fitted, wide_option
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.report.document import Report
    from llmb.submission.runs import ReportedRun

#: Short names of the source documents; a test compares the names with the published tables.
DOCUMENTS = ("litgpt", "llm-train-bench", "nanotron", "nemo", "alcf", "gpt-bench")


@click.command("report", short_help="Rank bundles, or show a source document's own tables.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=Path)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Default: by the name of --output, else markdown.",
)
@click.option("--output", "-o", type=Path, help="Write to this file.")
@click.option(
    "--like",
    "names",
    type=click.Choice(DOCUMENTS),
    multiple=True,
    help="Show the tables of a source document instead of a ranking; repeatable.",
)
@click.option("--debug", is_flag=True, help="With --like: show debug runs, too, with a label.")
@evidence_option
@wide_option
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--csv", "as_csv", is_flag=True, help="The same as --format csv.")
def command(
    paths: tuple[Path, ...],
    form: str | None,
    output: Path | None,
    names: tuple[str, ...],
    debug: bool,
    evidence: tuple[str, ...],
    wide: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Rank bundles by tokens per second, within a workload, mode and effective precision.

    PATH is a bundle or a folder of bundles [default: submissions]. The HTML page is a single file.
    Debug and INVALID runs are never ranked. A bundle refused by llmb verify is listed with the
    first failed check. Results of llmb verify are kept in ~/.cache/llmb. For evidence outside of
    the bundles use --evidence PLACE.

    --like DOCUMENT shows the tables of a source document, measured beside published figures. PATH
    is then a run directory, a record, a bundle, or a folder of runs [default: runs and
    submissions]. A row shows the fastest run.

    \b
    Examples:
      llmb report
      llmb report --format html --output submissions/leaderboard.html
      llmb report submissions/acme --csv > acme.csv
      llmb report submissions --evidence evidence --evidence https://acme.example/evidence
      llmb report --like nemo --like nanotron runs/20261101T120000Z-nemo-bert-base-BF16-cpu
    """
    from llmb.submission.elsewhere import places

    there = places(evidence)
    chosen = {word for word, given in (("json", as_json), ("csv", as_csv)) if given}
    chosen |= {form} if form else set()
    if len(chosen) > 1:
        raise click.UsageError(f"{' and '.join(sorted(chosen))}: choose one format")
    form = next(iter(chosen), None)
    if names:
        _documents(paths, names, form, output, debug=debug, wide=wide)
        return
    if debug:
        raise click.UsageError("--debug goes with --like: a debug run is never ranked")
    rank(paths, form, output, there, wide=wide)


def _documents(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    form: str | None,
    output: Path | None,
    *,
    debug: bool,
    wide: bool,
) -> None:
    """Show the tables of the documents ``names``."""
    from llmb.report import render
    from llmb.report.document import report
    from llmb.workloads.published import documents

    if form == "html":
        raise click.UsageError("--format html goes without --like")
    runs = _runs(paths)
    reports = [
        (name, report(name, documents()[name], runs, debug=debug)) for name in dict.fromkeys(names)
    ]
    if form is None and output is None and sys.stdout.isatty():
        for _, one in reports:
            _print(one, wide=wide)
        return
    if form == "json":
        text = json.dumps([render.as_data(name, one) for name, one in reports], indent=1) + "\n"
    elif form == "csv":
        text = render.comma_separated(reports)
    else:
        text = "\n".join(render.markdown(one) for _, one in reports)
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)


def _runs(paths: tuple[Path, ...]) -> list[ReportedRun]:
    """Return every readable run; print a line on stderr for each unreadable run."""
    from llmb.errors import BundleRefusedError
    from llmb.report import collect
    from llmb.submission.runs import run_of

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


def _print(report: Report, *, wide: bool) -> None:
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
        measured: list[str] = []  # the device's name is too long for a cell
        for line in section.lines:
            *cells, where = render.cells(line)
            if where:
                measured.append(f"[{len(measured) + 1}] {where}")
            mark = f"[{len(measured)}]" if where else ""
            table.add_row(*(Text(printable(cell)) for cell in (*cells, mark)))
        print_fitted(table, titles[-2:0:-1], wide=wide)
        for text in measured:
            console.print(Text(printable(text)))
        for note in section.notes:
            console.print(Text(printable(note), style="dim"))
    for note in report.notes:
        console.print(Text(f"\nnote: {printable(note)}", style="yellow"))
