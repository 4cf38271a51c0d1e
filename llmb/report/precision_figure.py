"""A figure of small multiples: tokens per second and share of the ceiling, by precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmb.records.finding import Verdict
from llmb.report.board import Board, BoardRow
from llmb.report.columns import system_of
from llmb.report.drawing import Axis, Dot, Drawing, LogAxis, Stroke, x_axis
from llmb.report.render import number, plain

#: Height of one precision's row in pixels.
_ROW = 26
#: Dots of one drawing; further rows are counted in the note.
_MOST_DOTS = 40
_MARKED = (Verdict.FLAGGED, Verdict.UNVERIFIED)


@dataclass(frozen=True)
class PrecisionRow:
    """One effective precision: a dot per ranked bundle on each axis."""

    precision: str
    #: Such as ``3 bundles, best 127.3 tokens/s``.
    note: str
    rates: Drawing
    shares: Drawing


@dataclass(frozen=True)
class PrecisionFigure:
    """The precisions of one workload and mode, on common axes."""

    title: str
    rows: tuple[PrecisionRow, ...]
    rate_axis: Drawing
    share_axis: Drawing


def precision_figures(board: Board) -> tuple[PrecisionFigure, ...]:
    """Return a figure for each workload and mode, in the order of the ranking."""
    found: dict[tuple[str, str], dict[str, Sequence[BoardRow]]] = {}
    for group, rows in board.groups:
        found.setdefault((group.workload, group.mode), {})[group.precision] = rows
    return tuple(_figure(f"{name} {mode}", every) for (name, mode), every in found.items())


def _figure(title: str, every: dict[str, Sequence[BoardRow]]) -> PrecisionFigure:
    shown = {precision: _shown(rows) for precision, rows in every.items()}
    axis = LogAxis.around(row.tokens_per_second for rows in shown.values() for row in rows)
    shares = Axis(0.0, 1.0)
    strokes, labels = x_axis(axis, 1, number, 3)
    rate_axis = Drawing(
        "logarithmic axis of tokens/s", 22, (), tuple(strokes), labels=tuple(labels)
    )
    strokes, labels = x_axis(shares, 1, lambda value: f"{value:.0%}", 2)
    share_axis = Drawing("axis of the share", 22, (), tuple(strokes), labels=tuple(labels))
    rows = (_row(name, len(every[name]), best, axis, shares) for name, best in shown.items())
    return PrecisionFigure(plain(title), tuple(rows), rate_axis, share_axis)


def _shown(rows: Sequence[BoardRow]) -> list[BoardRow]:
    """Return the fastest of ``rows``, at most 40."""
    fastest = sorted(rows, key=lambda row: -row.tokens_per_second)
    return [row for row in fastest if row.tokens_per_second > 0.0][:_MOST_DOTS]


def _row(
    precision: str, count: int, rows: Sequence[BoardRow], axis: LogAxis, shares: Axis
) -> PrecisionRow:
    best = number(rows[0].tokens_per_second) if rows else "nothing"
    note = f"{count} bundle{'' if count == 1 else 's'}, best {best} tokens/s"
    note += f"; the fastest {len(rows)} are drawn" if count > len(rows) else ""
    name = plain(precision)
    measured = [(row, row.fraction_of_ceiling) for row in rows if row.fraction_of_ceiling]
    highest = max((share for _, share in measured), default=None)
    said = "not measured" if highest is None else f"highest {highest:.1%}"
    return PrecisionRow(
        name,
        note,
        _strip(
            f"{name}, tokens/s: {note}",
            ((axis.place(r.tokens_per_second), r, number(r.tokens_per_second)) for r in rows),
            "tokens/s",
        ),
        _strip(
            f"{name}, share of the ceiling: {said}",
            ((shares.place(share), row, f"{share:.1%}") for row, share in measured),
            "of the ceiling",
        ),
    )


def _strip(name: str, places: Iterable[tuple[float, BoardRow, str]], unit: str) -> Drawing:
    """Return a drawing of one dot per row, the best dot on top."""
    dots = [
        Dot(
            min(max(x, 1.5), 98.5),
            _ROW / 2,
            5,
            "marked" if row.verdict in _MARKED else "block",
            f"{system_of(row)}: {text} {unit}, {row.verdict.value}",
        )
        for x, row, text in places
    ]
    line = Stroke(0, _ROW / 2, 100, _ROW / 2, "grid")
    return Drawing(name, _ROW, (), (line,), dots=tuple(reversed(dots)))
