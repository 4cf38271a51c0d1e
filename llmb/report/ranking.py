"""The leaderboard as Markdown, CSV or JSON data; untrusted texts of records are escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from llmb.records.declared import DECLARED, DECLARED_BY_PLACE, marked
from llmb.report.board import Board, BoardReference, BoardRow
from llmb.report.columns import COLUMNS, flat, flat_fields, row_data, who
from llmb.report.render import escaped, inert

SCHEMA = "llmb.leaderboard/1"
TITLE = "llmb leaderboard"
ABOUT = (
    "Ranked within one workload, mode and effective precision: what is trusted more stands first, "
    "then what has more tokens per second. The effective precision is the format that was measured "
    "computing, not the one that was declared. Every bundle passes llmb verify, "
    "which anybody can repeat offline: its files fit together. What is marked as declared nobody "
    "can check. Debug and INVALID runs are never ranked."
)
REFERENCES = (
    "Published by others on other hardware and by other programs: for orientation, never ranked."
)
#: Fields of a CSV line before and after the fields of the columns.
_FIRST, _LAST = ("kind",), ("reason",)


def markdown(board: Board) -> str:
    """Return the leaderboard in GitHub's Markdown."""
    lines = [f"# {TITLE}", "", ABOUT]
    for group, rows in board.groups:
        lines += [
            "",
            f"## {escaped(group.title)}",
            "",
            *row_table(rows),
        ]
        if any(row.overlaps for row in rows):
            lines += ["", "≈ its interval and that of the row above overlap."]
    if not board.groups:
        lines += ["", "Nothing is ranked yet."]
    if board.apart:
        apart = (
            (who(row), row.group.title, row.unranked or "", row.entry.path) for row in board.apart
        )
        titles = map(marked, ("System", "Run", "Why", "Bundle"))
        lines += ["", "## Not ranked", "", *_table(titles, apart)]
    for title, is_unread in (("Not verified", True), ("Refused", False)):
        rest = [(o.path, o.reason) for o in board.refused if o.is_unread is is_unread]
        if rest:
            lines += ["", f"## {title}", "", *_table(("Bundle", "Why"), rest)]
    return "\n".join(lines) + "\n"


def row_table(rows: Iterable[BoardRow]) -> Iterator[str]:
    """Yield ``rows`` as lines of a Markdown table, with a title line."""
    shown = [(marked(one.title), one.words) for one in COLUMNS if one.words is not None]
    cells = ([words(row) for _, words in shown] for row in rows)
    return _table((title for title, _ in shown), cells)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = tuple(titles)
    for cells in (names, ("---",) * len(names)):
        yield "| " + " | ".join(cells) + " |"
    for row in rows:
        yield "| " + " | ".join(map(escaped, row)) + " |"


def comma_separated(board: Board) -> str:
    """Return CSV: a header, then one line per bundle or reference row."""
    return _csv(_lines(board))


def csv_title() -> str:
    """Return the first line of the CSV."""
    return _csv(())


def csv_line(row: BoardRow) -> str:
    """Return the CSV line of ``row``, for a download from the page."""
    return _csv([_line(row)]).removeprefix(csv_title())


def _csv(lines: Iterable[dict[str, object]]) -> str:
    stream = io.StringIO()
    fields = [name for name in flat_fields() if name != "unranked"]
    writer = csv.DictWriter(stream, (*_FIRST, *fields, *_LAST), lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: inert(value) for key, value in line.items()})
    return stream.getvalue()


def _line(row: BoardRow) -> dict[str, object]:
    data = flat(row)
    kind, reason = ("apart" if row.unranked else "ranked"), data.pop("unranked")
    return {**data, "kind": kind, "reason": reason}


def _lines(board: Board) -> Iterator[dict[str, object]]:
    yield from map(_line, board.rows)
    for refused in board.refused:
        kind = "not verified" if refused.is_unread else "refused"
        yield {"kind": kind, "path": refused.path, "reason": refused.reason}
    for published in board.references:
        figures = dict(published.figures)
        yield {
            "kind": "reference",
            "workload": published.workload,
            "device": published.hardware,
            "path": published.source,
            "reason": f"published: {published.row}",
            "tokens_per_second": figures.get("Tokens/s"),
        }


def as_data(board: Board) -> dict[str, Any]:
    """Return the leaderboard as JSON data; null: not measured or not known."""
    return {
        "schema": SCHEMA,
        "declared": declared(),
        "groups": [
            {
                "workload": group.workload,
                "mode": group.mode,
                "precision": group.precision,
                "rows": [row_data(row) for row in rows],
            }
            for group, rows in board.groups
        ],
        "apart": [row_data(row) for row in board.apart],
        "refused": _reasons(board, is_unread=False),
        "not_verified": _reasons(board, is_unread=True),
        "references": [_reference_data(row) for row in board.references],
    }


def declared() -> list[str]:
    """Return the fields that no check of llmb covers."""
    return [*DECLARED_BY_PLACE, *DECLARED]


def _reasons(board: Board, *, is_unread: bool) -> list[dict[str, str]]:
    every = (one for one in board.refused if one.is_unread is is_unread)
    return [{"path": one.path, "reason": one.reason} for one in every]


def _reference_data(row: BoardReference) -> dict[str, Any]:
    return {
        "workload": row.workload,
        "document": row.document,
        "source": row.source,
        "hardware": row.hardware,
        "row": row.row,
        "figures": dict(row.figures),
    }
