"""``llmb show``: prints a record's summary, or the command of the run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmb.cli.run_name import RunName
from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.config import Frozen
    from llmb.records.run_record import RunRecord

F = TypeVar("F", bound="Frozen")


@click.command("show", short_help="Show a run record.")
@click.argument("path", metavar="RUN", type=RunName())
@click.option("--command", "as_command", is_flag=True, help="Print the command of the same run.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole record as JSON.")
@click.option("--html", "as_html", is_flag=True, help="Write the run's page, report.html.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --html: the page goes here; default: report.html in the run directory.",
)
def command(
    path: Path, as_command: bool, as_json: bool, as_html: bool, output: Path | None
) -> None:
    """Summarise a run: RUN is a run directory, a record.json, a bundle (folder or zip), or a name.

    Names are those of `llmb list`: latest, latest~1, a tag, the beginning of a directory's name.

    \b
    Examples:
      llmb show latest
      llmb show runs/20261101T120000Z-llama-1.4b-BF16-cpu --html
      llmb show bundle.zip --html --output acme.html
      $(llmb show record.json --command)
    """
    from llmb.errors import UsageError
    from llmb.records.bundle import read_record

    if output is not None and not as_html:
        raise UsageError(f"--output {output}: only with --html")
    record = read_record(path)
    if as_html:
        from llmb.cli import pages

        target = _place_of_page(path) if output is None else output
        pages.put_for_user(target, pages.run_page_of(record))
    elif as_command:
        click.echo(command_line(record))
    elif as_json:
        from llmb.records.canonical import as_json as to_json

        click.echo(json.dumps(to_json(record), indent=1))
    else:
        from rich.console import Console

        from llmb.cli.precision_table import print_recipe
        from llmb.cli.summary import print_summary

        shown = for_terminal(record)
        print_summary(shown, of_a_stranger=True)
        if shown.precision_recipe is not None:
            print_recipe(Console(highlight=False), shown.precision_recipe)


def _place_of_page(path: Path) -> Path:
    """Return the path of ``report.html`` in the run directory at ``path``.

    Raises:
        UsageError: a bundle, whose files are exactly those in the manifest, or a single file.
    """
    from llmb.errors import UsageError
    from llmb.records.bundle import MANIFEST
    from llmb.records.run_directory import REPORT

    if not path.is_dir() or (path / MANIFEST).exists():
        raise UsageError(f"{path} is no run directory: say where the page goes, --output FILE")
    return path / REPORT


def command_line(record: RunRecord, *, same_seed: bool = True) -> str:
    """Return the shell-quoted ``llmb run`` line of the same run.

    Raises:
        BundleRefusedError: a value holds characters that could act on a terminal.
    """
    from llmb.errors import BundleRefusedError
    from llmb.supervision.run_settings import settings_of

    settings = settings_of(record.config, record.config.seed if same_seed else None)
    words = ["llmb", "run"]
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list):
            words += [word for text in value for word in ("-O", text)]
        else:
            # click reads a value with a leading dash as a flag.
            dashed = str(value).startswith("-")
            words += [f"--{name}={value}"] if dashed else [f"--{name}", str(value)]
    line = shlex.join(words)
    if not line.isprintable():
        raise BundleRefusedError(f"the configuration holds unprintable text: {printable(line)}")
    return line


def for_terminal(value: F) -> F:
    """Return a record, or part of a record, with every text escaped for the terminal."""
    from llmb.records.canonical import as_json

    def escape(item: Any) -> Any:
        if isinstance(item, dict):
            return {printable(key): escape(part) for key, part in item.items()}
        if isinstance(item, list):
            return [escape(part) for part in item]
        return printable(item) if isinstance(item, str) else item

    return type(value).model_validate(escape(as_json(value)))
