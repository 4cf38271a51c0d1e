"""The page of ``llmb history --html``: each series over its runs, with levels and steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llmb.history.baseline import percent
from llmb.history.changes import ChangePoint
from llmb.history.line import HistoryLine
from llmb.history.series import Series, value_of
from llmb.report.drawing import Area, Axis, Dot, Drawing, Label, Stroke
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import flops, interval_words
from llmb.report.run_page import STYLES
from llmb.report.templates import page_of

_HEIGHT, _TOP, _BOTTOM = 260, 14, 40
#: Rows of a table: the newest runs.
_MOST_ROWS = 200
#: Most series on a page; the series with the newest runs stay.
MOST_SERIES = 50
_DOTS = {"CONSISTENT": "dot-better", "REPRODUCED": "dot-better"}
_MOST_LABELS = 3
#: Characters of a label below the figure: a short commit, or month, day and time.
_LABEL = 11
_ODD = 6.0


@dataclass(frozen=True)
class HistoryRow:
    """One run in the table."""

    line: HistoryLine
    label: str
    rate: str
    interval: str | None
    share: str
    ceiling: str


@dataclass(frozen=True)
class SeriesShown:
    """One series on the page."""

    title: str
    measure: str
    machines: int
    count: int
    figure: Drawing
    steps: tuple[str, ...]
    rows: tuple[HistoryRow, ...]


def history_page(
    found: Sequence[Series], points: Sequence[Sequence[ChangePoint]], over: str
) -> str:
    """Return the page of the series ``found``.

    Args:
        found: the series, the newest first; 50 at most are shown.
        points: the change points of each series.
        over: "commits" or "dates": the labels of the runs.
    """
    shown = [
        _shown(series, its, over)
        for series, its in list(zip(found, points, strict=True))[:MOST_SERIES]
    ]
    return page_of(
        "history.html.jinja",
        STYLES,
        shown=shown,
        left_out=max(0, len(found) - MOST_SERIES),
        not_measured=NOT_MEASURED,
    )


def _shown(series: Series, points: Sequence[ChangePoint], over: str) -> SeriesShown:
    return SeriesShown(
        title=series.title,
        measure=series.measure,
        machines=series.machines,
        count=len(series.lines),
        figure=figure(series, points, over),
        steps=tuple(_step(series, point, over) for point in points),
        rows=tuple(_table_row(line, over) for line in reversed(series.lines[-_MOST_ROWS:])),
    )


def _table_row(line: HistoryLine, over: str) -> HistoryRow:
    share = line.fraction_of_ceiling
    return HistoryRow(
        line=line,
        label=label_of(line, over),
        rate=number(line.tokens_per_second),
        interval=interval_words(line.ci95 if line.interval_values >= 3 else None),
        share=NOT_MEASURED if share is None else f"{share:.1%}",
        ceiling=flops(line.ceiling),
    )


def label_of(line: HistoryLine, over: str) -> str:
    """Return the name of a run: ten digits of the commit, or the time without a commit."""
    if over == "commits" and line.commit is not None:
        return line.commit[:10]
    return line.created_utc[:16].replace("T", " ")


def _step(series: Series, point: ChangePoint, over: str) -> str:
    ends = (_value(series, value) for value in (point.before, point.after))
    where = label_of(series.lines[point.at], over)
    return f"{percent(point.change)} at {where}: {' to '.join(ends)}, p {point.p_value:.1g}"


def _value(series: Series, value: float) -> str:
    return f"{value:.1%}" if series.measure == "share of ceiling" else number(value)


def axis_of(values: Sequence[float], margin: float) -> Axis:
    """Return the axis of ``values`` without odd ones: further than 6 deviations from the median.

    The deviation is 1.4826 times the median absolute deviation of all values, so a step stays on
    the axis, and one run of another speed leaves the others visible.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Axis.around([])
    middle = statistics.median(finite)
    most = _ODD * 1.4826 * statistics.median(abs(value - middle) for value in finite)
    return Axis.around((v for v in finite if not most or abs(v - middle) <= most), margin)


def figure(series: Series, points: Sequence[ChangePoint], over: str) -> Drawing:
    """Return the drawing of a series: a dot per run, whiskers, levels, and a line at each step.

    An interval that leaves the axis is cut, and an odd run lies on the edge (``axis_of``).
    """
    lines, values = series.lines, series.values()
    axis = axis_of(values, 0.25)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - axis.place(value) / 100)

    def x(at: float) -> float:
        return round(8 + 90 * (at + 0.5) / len(lines), 3)

    strokes = [Stroke(8, y(tick), 100, y(tick), "grid") for tick in axis.ticks(5)]
    labels = [Label(7.4, y(tick) + 4, _value(series, tick), "end") for tick in axis.ticks(5)]
    areas, dots = [], []
    for at, line in enumerate(lines):
        ends = series.interval(line)
        if ends is not None:
            top, bottom = y(ends[1]), y(ends[0])
            areas.append(Area(x(at) - 0.25, top, 0.5, max(1.0, bottom - top), "whisker-band"))
        words = f"{label_of(line, over)}: {_value(series, value_of(line, series.measure))}"
        style = _DOTS.get(line.verdict.value, "dot-worse")
        dots.append(Dot(x(at), y(values[at]), 4, style, f"{words}, {line.verdict.value}"))
    for n, point in enumerate(points):
        begin = points[n - 1].at if n else 0
        end = points[n + 1].at if n + 1 < len(points) else len(lines)
        edge, before, after = x(point.at - 0.5), y(point.before), y(point.after)
        strokes.append(Stroke(edge, _TOP, edge, _HEIGHT - _BOTTOM, "mark-limit"))
        strokes.append(Stroke(x(begin - 0.5), before, edge, before, "headline"))
        strokes.append(Stroke(edge, after, x(end - 0.5), after, "headline"))
    stride = max(1, -(-len(lines) // _MOST_LABELS))
    labels += [
        Label(x(at), _HEIGHT - 18, label_of(lines[at], over)[-_LABEL:], "middle")
        for at in range(0, len(lines), stride)
    ]
    name = f"{series.measure} of {len(lines)} runs, {len(points)} steps"
    return Drawing(
        name, _HEIGHT, tuple(areas), tuple(strokes), dots=tuple(dots), labels=tuple(labels)
    )
