"""``llmb tag``: gives a run a local label, or takes the label away."""

from __future__ import annotations

from pathlib import Path

import click

from llmb.cli import completion
from llmb.cli.run_name import RunName
from llmb.cli.text import printable


@click.command("tag", short_help="Give a run a name of your own, or take the name away.")
@click.argument("name", metavar="NAME", shell_complete=completion.tags)
@click.argument("run", metavar="[RUN_DIR]", default="latest", type=RunName())
@click.option("--remove", is_flag=True, help="Take the tag from the run.")
def command(name: str, run: Path, remove: bool) -> None:
    """Give the run RUN_DIR (default: the latest run) the tag NAME.

    NAME then names the run in every command: `llmb show NAME`. Several runs may have one tag:
    NAME is the newest of them, NAME~1 the one before. A tag is a local label, a file in the run
    directory: no part of the record, and no part of a bundle.

    \b
    Examples:
      llmb tag baseline
      llmb tag nightly latest~1
      llmb tag nightly latest~1 --remove
    """
    from llmb.errors import UsageError
    from llmb.records import run_tags
    from llmb.records.run_names import is_run

    run_tags.checked(name)
    if not is_run(run):
        raise UsageError(f"{run} is no run directory: `llmb list` shows the names of runs")
    (run_tags.remove if remove else run_tags.add)(run, name)
    tags = ", ".join(run_tags.tags_of(run)) or "none"
    click.echo(f"{printable(str(run))}: tags {tags}")
