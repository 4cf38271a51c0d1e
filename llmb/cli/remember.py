"""Adds a finished run to the history beside the run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.run_record import RunRecord


def remember(
    run_directory: Path, record: RunRecord, preset: Literal["debug"] | None = None
) -> None:
    """Append the line of ``record`` to ``history.jsonl`` beside the run directory.

    The record is on the disk already, and no fault of the history may cost the run. Example: on a
    full disk a line on stderr says "No space left on device", and the command goes on.
    """
    from llmb.history import file
    from llmb.history.line import line_of
    from llmb.records.repository import head

    path = run_directory.parent / file.FILE
    try:
        line = line_of(record, run_directory.name, head(Path()), preset)
        file.append(path, [line])
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}".split("\n")[0])
        again = f"llmb history add {printable(str(run_directory))}"
        click.echo(
            f"llmb: {printable(str(path))} has no line of this run ({said}); {again}", err=True
        )
