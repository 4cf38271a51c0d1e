"""``llmb export``: runs in the formats of other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.run_name import RunName
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.comparison.figures import Run

FORMATS = ("csv", "json", "parquet", "mllog")


@click.command("export", short_help="Export runs as CSV, JSON, Parquet or MLPerf log lines.")
@click.argument("paths", metavar="[RUN]...", nargs=-1, type=RunName())
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Write to this file instead of stdout."
)
@click.option("--steps", is_flag=True, help="A row a step instead of a row a run.")
@click.option(
    "--published",
    is_flag=True,
    help="Add what source documents publish of the same workloads (without RUN: of all), marked.",
)
def command(
    paths: tuple[Path, ...], form: str, output: Path | None, steps: bool, published: bool
) -> None:
    """Export runs: run directories, records, bundles (folders or zips), folders of runs, or names.

    Names are those of `llmb list`, such as latest, latest~1 or a tag.
    CSV, JSON and Parquet have a row per run (kind "measured") or per step, with every figure
    computed from the run's own stamps; an unmeasured figure is empty. Published rows (kind
    "published") name the source, and come from other hardware. mllog is one run as MLPerf's log
    lines, for MLPerf's parsers, and no MLPerf submission. Parquet needs pyarrow: pip install
    'llmb[parquet]'.

    \b
    Examples:
      llmb export runs submissions --format csv --output runs.csv
      llmb export latest --format csv --steps
      llmb export run.zip --format mllog --output result_0.txt
      llmb export submissions --published --format json
    """
    if not paths and not published:
        raise click.UsageError("name a run, or ask for --published rows alone")
    if form == "mllog" and (steps or published):
        raise click.UsageError("--format mllog is one run's log: it takes no --steps, --published")
    if steps and published:
        raise click.UsageError("--steps and --published: choose one")
    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("--format parquet is not for a terminal: name a file with --output")
    runs = _runs(paths)
    if form == "mllog" and len(runs) != 1:
        raise click.UsageError(f"--format mllog is one run's log: name one run, not {len(runs)}")
    _write(_content(runs, form, bool(paths), steps, published), output)


def _content(runs: list[Run], form: str, named: bool, steps: bool, published: bool) -> bytes:
    from llmb.report.exports import mllog, rows, tables

    if form == "mllog":
        return "".join(f"{line}\n" for line in mllog.lines(runs[0])).encode()
    if steps:
        found = [row for run in runs for row in rows.step_rows(run.record)]
    else:
        found = [rows.run_row(run) for run in runs]
    if published:
        names = {run.record.workload.name for run in runs} if named else None
        found += rows.published_rows(names)
    if form == "parquet":
        return tables.as_parquet(found)
    return (tables.as_csv(found) if form == "csv" else tables.as_json(found)).encode()


def _runs(paths: tuple[Path, ...]) -> list[Run]:
    """Return every readable run; print a line on stderr for each unreadable run."""
    from llmb.comparison.figures import run_of
    from llmb.errors import BundleRefusedError, UsageError
    from llmb.report.collect import collect

    if not paths:
        return []
    found = collect(paths)
    runs, refused = [], list(found.refused)
    for record in found.records:
        try:
            runs.append(run_of(record))
        except BundleRefusedError as error:
            refused.append(str(error))
    if refused and not runs:
        raise BundleRefusedError("; ".join(refused[:3]))
    for line in refused:
        click.echo(f"llmb: passed over {printable(line)}", err=True)
    if not runs:
        raise UsageError("there is no run to export")
    return runs


def _write(content: bytes, output: Path | None) -> None:
    """Write ``content`` to ``output`` or to stdout.

    Raises:
        UsageError: the file cannot be written.
    """
    from llmb.errors import UsageError

    if output is None:
        click.echo(content, nl=False)
        return
    try:
        output.write_bytes(content)
    except OSError as error:
        raise UsageError(f"--output {str(output)!r} cannot be written: {error.strerror}") from None
