"""Writes the pages of runs: ``report.html`` in a run directory, or a file that a user names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.text import printable

if TYPE_CHECKING:
    from llmb.records.run_record import RunRecord


def write_report(run_directory: Path, record: RunRecord) -> Path | None:
    """Write ``report.html`` of a finished run, and return its path.

    The record is on the disk already: ``write_or_warn``.
    """
    again = f"; to try again: llmb show {printable(str(run_directory))} --html"
    return write_or_warn(run_directory, lambda: run_page_of(record), again)


def write_or_warn(folder: Path, page: Callable[[], str], again: str = "") -> Path | None:
    """Write ``page`` as ``report.html`` into ``folder``, and return its path.

    Results are on the disk already, and no fault of a page may cost the results. Example: on a full
    disk a line on stderr says "No space left on device", None is returned, and the command goes on.
    """
    from llmb.records.run_directory import REPORT

    path = folder / REPORT
    try:
        put(path, page())
    except Exception as error:
        said = printable(f"{type(error).__name__}: {error}".split("\n")[0])
        click.echo(f"llmb: {printable(str(path))} is not written ({said}){again}", err=True)
        return None
    return path


def run_page_of(record: RunRecord) -> str:
    """Return the page of ``record``, with the command that repeats the run if it can be shown."""
    from llmb.cli.show import command_line
    from llmb.errors import BundleRefusedError
    from llmb.report.run_page import run_page

    try:
        command: str | None = command_line(record)
    except BundleRefusedError:
        command = None
    return run_page(record, command)


def put(path: Path, text: str) -> None:
    """Write ``text`` to ``path``: the whole file, or no file.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def put_for_user(path: Path, text: str, *, say: bool = True) -> None:
    """Write ``text`` to the file that an option names, and say where unless ``say`` is False.

    Raises:
        UsageError: the file cannot be written.
    """
    from llmb.errors import UsageError

    try:
        put(path, text)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{printable(str(path))}: cannot write there ({reason})") from None
    if say:
        click.echo(f"page: {printable(str(path))}")
