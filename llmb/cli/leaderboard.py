"""The ranking of bundles, for ``llmb report`` without ``--like``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.standings import listed_owners, member_of
from llmb.cli.tables import print_fitted
from llmb.cli.text import printable

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from llmb.report.board import Board, BoardRepetition
    from llmb.submission.bundles import Shelf
    from llmb.submission.elsewhere import EvidencePlaces
    from llmb.submission.owners import OwnerLine

FORMATS = ("markdown", "csv", "json", "html")
USUAL = Path("submissions")
#: Columns in a terminal; other forms have more columns.
_ON_A_TERMINAL = ("#", "System", "Device", "Tokens/s", "95 % interval", "Verdict", "Bundle")
#: Columns that fold, and columns that may be left out, the least important first.
_FOLDING, _LEAST = ("System", "Device", "Bundle"), ("95 % interval", "Device", "Verdict")


def rank(
    paths: tuple[Path, ...],
    form: str | None,
    output: Path | None,
    places: EvidencePlaces | None = None,
    *,
    wide: bool = False,
) -> None:
    """Rank the bundles at ``paths`` and print or write the leaderboard.

    Raises:
        UsageError: no bundle there, or the output cannot be written.
    """
    found = ranked(paths or (USUAL,), places)
    for one in found.refused:
        word = "not verified" if one.is_unread else "refused"
        click.echo(f"llmb: {word} {printable(one.path)}: {printable(one.reason)}", err=True)
    if form is None and output is None and sys.stdout.isatty():
        _print(found, wide=wide)
        return
    text = text_of(found, form or _form_of(output))
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text)


def ranked(paths: tuple[Path, ...], places: EvidencePlaces | None = None) -> Board:
    """Return the leaderboard of the bundles at ``paths``; verifications are kept for later calls.

    Raises:
        UsageError: no bundle there.
    """
    from llmb.records.recomputed_list import read_recomputed
    from llmb.report.board import board
    from llmb.submission.bundles import gather
    from llmb.submission.verified import Cache, usual_folder

    cache = Cache(usual_folder(), places)
    folders = [path for path in paths if path.is_dir()]
    shelf = gather(paths, cache.verified, _authorities(folders))
    shelf, repeated = repetitions(shelf, listed_owners(folders))
    lists = [read_recomputed(path).bundles for path in folders]
    return board(shelf, repeated, {key: one for each in lists for key, one in each.items()})


def _authorities(folders: Sequence[Path]) -> list[Certificate]:
    """Return the certificates of all authorities listed in ``folders``; a line where none counts.

    Raises:
        BundleRefusedError: a list cannot be read.
    """
    from llmb.errors import UnavailableError
    from llmb.submission.time_stamps import AUTHORITIES, listed

    try:
        lists = [listed(path / AUTHORITIES) for path in folders if (path / AUTHORITIES).is_file()]
    except UnavailableError as error:
        click.echo(f"llmb: time stamps are not looked at: {error}", err=True)
        return []
    return [one for each in lists for one in each]


def repetitions(
    shelf: Shelf, owners: Sequence[OwnerLine] = ()
) -> tuple[Shelf, dict[str, list[BoardRepetition]]]:
    """Return ``shelf`` without bundles with a false link, and bundle id -> repetitions.

    ``owners``: the list of owners; only signatures by the keys of the list count.
    """
    from llmb.report.board import BoardRepetition
    from llmb.reproduction import links
    from llmb.submission.bundles import RefusedBundle, Shelf

    every = {entry.bundle_id: entry for entry in shelf.entries}
    members = [
        member_of(e.bundle_id, e.record, e.signers, e.whose.submitter if e.whose else None, owners)
        for e in shelf.entries
    ]
    refused = links.false_links(members)
    sound = [member for member in members if member.bundle_id not in refused]
    found = {
        name: [
            BoardRepetition(
                one.reproduction.bundle_id,
                one.reproduction.difference_percent,
                one.lacking,
                by_same=one.by_same and not one.shortfalls,
            )
            for one in standing.repetitions
        ]
        for name, standing in links.standings(sound).items()
    }
    bad = [RefusedBundle(every[name].path, reason) for name, reason in refused.items()]
    kept = tuple(entry for entry in shelf.entries if entry.bundle_id not in refused)
    every_bad = sorted((*shelf.refused, *bad), key=lambda one: one.path)
    return Shelf(kept, tuple(every_bad)), found


def write(output: Path, text: str) -> None:
    """Write ``text`` to ``output``.

    Raises:
        UsageError: ``output`` cannot be written.
    """
    from llmb.errors import UsageError

    try:
        output.write_bytes(text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise UsageError(f"--output {str(output)!r}: {error.strerror}") from None


def _form_of(output: Path | None) -> str:
    """Return the format for the suffix of ``output``. Example: html for board.html."""
    suffixes = {".html": "html", ".htm": "html", ".csv": "csv", ".json": "json"}
    return suffixes.get(output.suffix.lower(), "markdown") if output else "markdown"


def text_of(ranked: Board, form: str) -> str:
    """Return the leaderboard as ``form``: markdown, csv, json or html."""
    from llmb.report import ranking

    if form == "html":
        from llmb.report.page import page

        return page(ranked, commands(ranked))
    if form == "json":
        return json.dumps(ranking.as_data(ranked), indent=1) + "\n"
    return ranking.comma_separated(ranked) if form == "csv" else ranking.markdown(ranked)


def commands(ranked: Board) -> dict[str, str]:
    """Return bundle id -> command of the same run; skip commands with control characters."""
    from llmb.cli.show import command_line
    from llmb.errors import LlmbError

    found = {}
    for row in ranked.rows:
        try:
            found[row.bundle_id] = command_line(row.entry.record)
        except LlmbError:
            continue
    return found


def _print(ranked: Board, *, wide: bool) -> None:
    """Print the ranking on a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from llmb.report.columns import COLUMNS

    console = Console(highlight=False)
    for group, rows in ranked.groups:
        console.print(Text(f"\n{printable(group.title)}", style="bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        shown = [one for one in COLUMNS if one.title in _ON_A_TERMINAL]
        for column in shown:
            figure = column.is_figure or column.title in ("#", "95 % interval")
            table.add_column(
                column.title,
                justify="right" if figure else "left",
                overflow="fold",
                no_wrap=column.title not in _FOLDING,
            )
        for row in rows:
            cells = (column.words(row) for column in shown if column.words)
            table.add_row(*(Text(printable(cell)) for cell in cells))
        print_fitted(table, _LEAST, wide=wide)
    for row in ranked.apart:
        words = f"not ranked: {row.entry.path}: {row.unranked}"
        console.print(Text(printable(words), style="yellow"), soft_wrap=True)
