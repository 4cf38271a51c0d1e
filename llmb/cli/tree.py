"""``llmb verify --tree``: judges the folder of submissions, or a pull request to the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from llmb.cli.text import printable
from llmb.records.printable import few

if TYPE_CHECKING:
    from llmb.report.board import Board, BoardRow
    from llmb.submission.elsewhere import EvidencePlaces
    from llmb.submission.tree import TreeFault, TreeVerification

_SHOWN, _SHOWN_OUTSIDE = 50, 5


def judge(
    tree: Path, base: str | None, author: str | None, places: EvidencePlaces | None, as_json: bool
) -> None:
    """Judge ``tree``, or the change since commit ``base``; print faults and new rows.

    Raises:
        UsageError, UnavailableError: as ``verify_tree``.
        BundleRefusedError: anything is wrong; every fault has been printed.
        EvidenceNotHereError: nothing is, but evidence lies elsewhere and was not to be had.
    """
    from llmb.cli.leaderboard import ranked
    from llmb.errors import BundleRefusedError, EvidenceNotHereError, UsageError
    from llmb.submission.tree import TreeFault, verify_tree

    found = verify_tree(tree, base, author, places.take if places else None)
    faults = [*found.faults]
    try:
        board = ranked((tree,), places)
    except UsageError:  # no bundle is left
        board = None
    if board is not None:
        named = {fault.path for fault in faults}
        faults += [
            TreeFault(one.path, one.reason, one.is_unread)
            for one in board.refused
            if base is None or (one.path in found.bundles and one.path not in named)
        ]
        faults += _leaderboards(tree, board) if not faults else ()
    faults = list(dict.fromkeys(faults))
    rows = [row for row in board.rows if row.entry.path in found.bundles] if board else []
    if as_json:
        click.echo(json.dumps(_data(found, faults, rows), indent=1))
    else:
        _say(found, faults, rows if base is not None else [])
    unread = [fault for fault in faults if fault.is_unread]
    if unread and len(unread) == len(faults):
        many = f"; so of {len(unread)} bundles" if len(unread) > 1 else ""
        line = f"{printable(unread[0].path)}: {_line(unread[0])}"
        raise EvidenceNotHereError(f"NOT VERIFIED  {line}{many}")
    if len(faults) == 1:
        raise BundleRefusedError(f"REFUSED  {printable(faults[0].path)}: {_line(faults[0])}")
    if faults:
        raise BundleRefusedError(f"{len(faults)} things are wrong with {str(tree)!r}")


def _line(fault: TreeFault) -> str:
    return printable(fault.reason)


def _leaderboards(tree: Path, board: Board) -> list[TreeFault]:
    """Return a fault for every committed leaderboard that differs from the bundles."""
    from llmb.cli.leaderboard import text_of
    from llmb.submission.tree import MADE, TreeFault

    faults = []
    for name in MADE:
        path = tree / name
        form = "html" if name.endswith(".html") else "markdown"
        made = text_of(board, form).encode("utf-8", errors="backslashreplace")
        if path.is_file() and path.read_bytes() != made:
            why = f"is not what the bundles make: llmb report {tree} --output {path}"
            faults.append(TreeFault(name, why))
    return faults


def _say(found: TreeVerification, faults: list[TreeFault], rows: list[BoardRow]) -> None:
    from llmb.report.ranking import row_table

    for fault in faults[:_SHOWN]:
        word = "not verified" if fault.is_unread else "refused"
        click.echo(f"{word}  {printable(fault.path)}: {_line(fault)}")
    if len(faults) > _SHOWN:
        click.echo(f"refused  and {len(faults) - _SHOWN} more")
    for path, verification in found.bundles.items():
        if not any(fault.path == path for fault in faults):
            click.echo(f"ok       {printable(path)}: {printable(verification.headline)}")
    if rows:
        click.echo("\nwould appear:\n")
        click.echo("\n".join(row_table(rows)))
    if found.outside:
        shown = few(map(printable, found.outside), _SHOWN_OUTSIDE)
        click.echo(f"note     files outside of the folder change, too, and are not judged: {shown}")
    if not faults:
        count = len(found.bundles)
        click.echo(f"{count} bundle{'' if count == 1 else 's'} looked at, nothing is wrong")


def _data(
    found: TreeVerification, faults: list[TreeFault], rows: list[BoardRow]
) -> dict[str, object]:
    return {
        "ok": not faults,
        "faults": [{"path": printable(fault.path), "reason": _line(fault)} for fault in faults],
        "bundles": [
            {
                "path": printable(path),
                "bundle_id": one.bundle_id,
                "headline": printable(one.headline),
            }
            for path, one in found.bundles.items()
        ],
        "outside": [printable(path) for path in found.outside],
        "rows": [
            {"path": printable(row.entry.path), "rank": row.rank, "unranked": row.unranked}
            for row in rows
        ],
    }
