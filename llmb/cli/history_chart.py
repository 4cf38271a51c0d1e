"""A series of runs in characters: a column per run, intervals, levels and change points."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmb.history.changes import ChangePoint
from llmb.history.series import Series
from llmb.report.drawing import Axis
from llmb.report.history_page import axis_of
from llmb.report.render import number

_ROWS = 8
#: Value, interval, level, change point, value above and below the chart: in Unicode, and for
#: terminals that have ASCII alone.
_SIGNS, _ASCII = ("●", "│", "┄", "┊", "▲", "▼"), ("o", "|", "-", ":", "^", "v")
#: Columns for the labels of the axis, in characters.
_MARGIN = 9


def chart(
    series: Series, points: Sequence[ChangePoint], width: int, *, ascii_only: bool = False
) -> list[str]:
    """Return the lines of a chart, at most ``width`` wide: the newest runs that fit.

    An interval that leaves the chart is cut, and an odd run is an arrow at the edge (``axis_of``).
    """
    value, interval, level, change, above, below = _ASCII if ascii_only else _SIGNS
    values = series.values()
    first = max(0, len(values) - (width - _MARGIN - 2))
    axis = axis_of(values[first:], 0.15)
    rows = [[" "] * (len(values) - first) for _ in range(_ROWS)]
    steps = {point.at for point in points}
    levels = _levels(len(values), points)
    for column, at in enumerate(range(first, len(values))):
        if at in steps:
            for row in rows:
                row[column] = change
        if at in levels:
            rows[_row(axis, levels[at])][column] = level
        if math.isnan(values[at]):
            continue
        ends = series.interval(series.lines[at]) or (values[at], values[at])
        for row in rows[_row(axis, ends[1]) : _row(axis, ends[0]) + 1]:
            row[column] = interval
        shown = value if axis.holds(values[at]) else above if values[at] > axis.high else below
        rows[_row(axis, values[at])][column] = shown
    labels = {0: axis.high, _ROWS // 2: (axis.high + axis.low) / 2, _ROWS - 1: axis.low}
    share = series.measure == "share of ceiling"
    texts = {at: f"{x:.1%}" if share else number(x) for at, x in labels.items()}
    unit = "share of ceiling (several machines)" if share else "tokens/s"
    side = "|" if ascii_only else "│"
    lines = [f"{texts.get(n, ''):>{_MARGIN}} {side}{''.join(row)}" for n, row in enumerate(rows)]
    counted = "1 run" if len(values) == 1 else f"{len(values)} runs"
    runs = f"{len(values) - first} of {counted}" if first else counted
    return [*lines, f"{'':{_MARGIN}} {unit}, {runs}, oldest first"]


def _levels(count: int, points: Sequence[ChangePoint]) -> dict[int, float]:
    """Return the level of each run beside a change point; none without change points."""
    found: dict[int, float] = {}
    for n, point in enumerate(points):
        begin = points[n - 1].at if n else 0
        end = points[n + 1].at if n + 1 < len(points) else count
        found |= dict.fromkeys(range(begin, point.at), point.before)
        found |= dict.fromkeys(range(point.at, end), point.after)
    return found


def _row(axis: Axis, value: float) -> int:
    """Return the row of ``value``, 0 at the top."""
    return min(_ROWS - 1, int((100 - axis.place(value)) / 100 * _ROWS))
