"""``llmb latest``: the path of the latest run, for scripts."""

from __future__ import annotations

from pathlib import Path

import click

from llmb.cli.run_name import RunName, runs_folder_option
from llmb.cli.settings import runs_folder


@click.command("latest", short_help="Print the path of the latest run.")
@runs_folder_option("Folder with the runs")
@click.pass_context
def command(ctx: click.Context, output_dir: Path | None) -> None:
    """Print the path of the latest run with a record. Without such a run: exit code 2.

    A newer run without a record, such as an interrupted run, is named on stderr.

    \b
    Examples:
      cd $(llmb latest)
      cp $(llmb latest)/report.html /tmp
    """
    chosen = runs_folder(ctx) if output_dir is None else output_dir
    click.echo(RunName.found("latest", chosen))
