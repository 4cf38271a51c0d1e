"""The leaderboard as Markdown, CSV or JSON data. Words of records are a stranger's: escaped."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from llmb.records.declared import DECLARED, DECLARED_BY_PLACE, marked
from llmb.records.finding import Verdict
from llmb.report.board import MARKED, Board, BoardReference, BoardRow
from llmb.report.render import NOT_MEASURED, escaped, inert, number

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
NOT_RANKED = "not ranked"
_RANKED = ("#", "System", "Device", "Tokens/s", "95 % interval", "Per device", "Tokens/J")
_MORE = ("Of ceiling", "MFU", "Measured precision", "Verdict", "Trust", "Plugin", "Date", "Bundle")
_COLUMNS = (
    "kind",
    "rank",
    "workload",
    "mode",
    "precision",
    "tokens_per_second",
    "ci95_low",
    "ci95_high",
    "overlaps_above",
    "tokens_per_second_per_device",
    "tokens_per_joule",
    "energy_source",
    "fraction_of_ceiling",
    "mfu",
    "mfu_source",
    "measured_precision",
    "measured_lowest",
    "measured_largest",
    "verdict",
    "trust",
    "trusted_because",
    "tokens_per_second_by_foreign_clock",
    "class",
    "strict",
    "marks",
    "plugin",
    "plugin_version",
    "device",
    "devices",
    "submitter",
    "system",
    "organisation",
    "availability",
    "batch_size",
    "window_s",
    "executor",
    "created_utc",
    "bundle_id",
    "signatures",
    "repeated_by",
    "path",
    "reason",
)


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
            (_who(row), row.group.title, row.unranked or "", row.entry.path) for row in board.apart
        )
        titles = map(marked, ("System", "Run", "Why", "Bundle"))
        lines += ["", "## Not ranked", "", *_table(titles, apart)]
    for title, is_unread in (("Not verified", True), ("Refused", False)):
        rest = [(o.path, o.reason) for o in board.refused if o.is_unread is is_unread]
        if rest:
            lines += ["", f"## {title}", "", *_table(("Bundle", "Why"), rest)]
    return "\n".join(lines) + "\n"


def row_table(rows: Iterable[BoardRow]) -> Iterator[str]:
    """Yield ``rows`` as lines of a table in Markdown, with their titles."""
    return _table(map(marked, (*_RANKED, *_MORE)), map(_cells, rows))


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    names = tuple(titles)
    for cells in (names, ("---",) * len(names)):
        yield "| " + " | ".join(cells) + " |"
    for row in rows:
        yield "| " + " | ".join(map(escaped, row)) + " |"


def _cells(row: BoardRow) -> tuple[str, ...]:
    return (
        NOT_RANKED if row.rank is None else f"{row.rank}" + (" ≈" if row.overlaps else ""),
        _who(row),
        f"{row.devices} x {row.device}",
        number(row.tokens_per_second),
        interval(row) or NOT_MEASURED,
        number(row.tokens_per_second_per_device),
        NOT_MEASURED if row.tokens_per_joule is None else number(row.tokens_per_joule),
        percent(row.fraction_of_ceiling),
        percent(row.mfu) + (f" ({row.mfu_source})" if row.mfu_source else ""),
        row.measured or NOT_MEASURED,
        ", ".join((verdict_words(row), *row.marks)),
        row.trust,
        f"{row.plugin} {row.plugin_version}",
        row.created_utc[:10],
        row.bundle_id[:12],
    )


def _who(row: BoardRow) -> str:
    """Return the ids of submitter and system, and the names that the submitter gives them."""
    ids = f"{row.submitter or 'unknown'} / {row.system or 'unknown'}"
    whose = row.entry.whose
    names = [name for name in (whose.organisation, whose.system_name) if name] if whose else []
    return f"{ids} ({', '.join(names)})" if names else ids


def interval(row: BoardRow) -> str:
    """Return the interval of a row in words, empty where there is none."""
    return f"{number(row.ci95[0])} to {number(row.ci95[1])}" if row.ci95 else ""


def percent(share: float | None) -> str:
    """Return a share in per cent."""
    return NOT_MEASURED if share is None else f"{share:.1%}"


def verdict_words(row: BoardRow) -> str:
    """Return the verdict, class and openness of a row; what a reader must see says why."""
    why = f" ({MARKED[row.verdict]})" if row.verdict in MARKED else ""
    return f"{row.verdict.value}{why}, {'strict' if row.strict else 'closed components'}"


def comma_separated(board: Board) -> str:
    """Return one line a bundle or reference row, with a header."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(board):
        writer.writerow({key: inert(value) for key, value in line.items()})
    return stream.getvalue()


def _lines(board: Board) -> Iterator[dict[str, object]]:
    for row in board.rows:
        data = row_data(row)
        low, high = data.pop("ci95") or (None, None)
        marks, repeated = "; ".join(data.pop("marks")), " ".join(data.pop("repeated_by"))
        kind, reason = ("apart" if row.unranked else "ranked"), data.pop("unranked")
        yield {
            **data,
            "kind": kind,
            "reason": reason,
            "ci95_low": low,
            "ci95_high": high,
            "marks": marks,
            "repeated_by": repeated,
        }
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
    """Return the leaderboard as JSON data; what is not measured or known is null."""
    return {
        "schema": SCHEMA,
        "declared": [*DECLARED_BY_PLACE, *DECLARED],
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


def _reasons(board: Board, *, is_unread: bool) -> list[dict[str, str]]:
    every = (one for one in board.refused if one.is_unread is is_unread)
    return [{"path": one.path, "reason": one.reason} for one in every]


def row_data(row: BoardRow) -> dict[str, Any]:
    """Return one row as JSON data."""
    verdict: Verdict = row.verdict
    return {
        "rank": row.rank,
        "overlaps_above": row.overlaps,
        "unranked": row.unranked,
        "workload": row.group.workload,
        "mode": row.group.mode,
        "precision": row.group.precision,
        "tokens_per_second": row.tokens_per_second,
        "ci95": list(row.ci95) if row.ci95 else None,
        "tokens_per_second_per_device": row.tokens_per_second_per_device,
        "tokens_per_joule": row.tokens_per_joule,
        "energy_source": row.energy_source,
        "fraction_of_ceiling": row.fraction_of_ceiling,
        "mfu": row.mfu,
        "mfu_source": row.mfu_source,
        "measured_precision": row.measured,
        "measured_lowest": row.measured_lowest,
        "measured_largest": row.measured_largest,
        "verdict": verdict.value,
        "trust": row.trust,
        "trusted_because": row.trusted_because,
        "tokens_per_second_by_foreign_clock": row.by_foreign_clock,
        "class": row.class_,
        "strict": row.strict,
        "marks": list(row.marks),
        "plugin": row.plugin,
        "plugin_version": row.plugin_version,
        "device": row.device,
        "devices": row.devices,
        "submitter": row.submitter,
        "system": row.system,
        "organisation": row.entry.whose.organisation if row.entry.whose else None,
        "availability": row.availability,
        "batch_size": row.batch_size,
        "window_s": row.window_s,
        "executor": row.executor,
        "created_utc": row.created_utc,
        "bundle_id": row.bundle_id,
        "signatures": row.signatures,
        "repeated_by": [one.bundle_id for one in row.repetitions if not one.lacking],
        "path": row.entry.path,
    }


def _reference_data(row: BoardReference) -> dict[str, Any]:
    return {
        "workload": row.workload,
        "document": row.document,
        "source": row.source,
        "hardware": row.hardware,
        "row": row.row,
        "figures": dict(row.figures),
    }
