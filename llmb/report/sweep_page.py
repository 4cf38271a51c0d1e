"""The page of a sweep, ``report.html`` in the sweep's folder: every point, on common axes."""

from __future__ import annotations

from dataclasses import dataclass

from llmb.records.run_directory import REPORT
from llmb.records.sweep_overview import MeasuredPoint, Overview, PointState
from llmb.report.drawing import Area, Axis, Dot, Drawing, Stroke, x_axis
from llmb.report.links import local_link
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import gigabytes, interval_words
from llmb.report.run_figures import bar
from llmb.report.run_page import STYLES
from llmb.report.templates import page_of

_ROW = 26
WORDS = {
    "out_of_memory": "out of memory",
    "predicted_out_of_memory": "out of memory, by llmb's estimate",
    "failed": "failed",
    "not_tried": "not tried",
    "unfinished": "to be run",
}


@dataclass(frozen=True)
class PointShown:
    """One point on the page."""

    state: PointState
    batch_size: str
    #: Tokens/s in words, or the reason for none.
    headline: str
    interval: str | None
    rate: Drawing | None
    memory: Drawing | None
    #: Link to the page of the run, relative to the sweep's folder.
    link: str | None
    is_best: bool


def sweep_page(overview: Overview) -> str:
    """Return the page of ``overview``: tokens/s and memory of each point, precision by precision.

    All points share one axis of tokens/s. A mark shows the rate that the device's matrix products
    alone would allow.
    """
    measured = [state.measured for state in overview.points if state.measured]
    axis = _axis(measured)
    most = max((one.peak_memory_bytes or 0 for one in measured), default=0)
    groups = [
        (precision, [_shown(state, overview, axis, most) for state in of_it])
        for precision in overview.plan.precisions
        if (of_it := [state for state in overview.points if state.precision == precision])
    ]
    strokes, labels = x_axis(axis, 1, number, 4)
    return page_of(
        "sweep.html.jinja",
        STYLES,
        overview=overview,
        plan=overview.plan,
        workload=overview.plan.asked.request.workload,
        groups=groups,
        axis=Drawing("axis of tokens/s", 22, (), tuple(strokes), labels=tuple(labels)),
        gigabytes=gigabytes,
        not_measured=NOT_MEASURED,
    )


def _axis(measured: list[MeasuredPoint]) -> Axis:
    ends = [0.0]
    for one in measured:
        ends += [one.tokens_per_second, *(one.ci95 or ())]
        ends += [] if one.ceiling_tokens_per_second is None else [one.ceiling_tokens_per_second]
    return Axis(0.0, 1.04 * max(ends) or 1.0)


def _shown(state: PointState, overview: Overview, axis: Axis, most: int) -> PointShown:
    found, size = state.measured, state.batch_size
    if found is None:
        asked = "auto" if size is None else f"{size:,}"
        return PointShown(state, asked, WORDS[state.status], None, None, None, None, False)
    peak = found.peak_memory_bytes
    return PointShown(
        state=state,
        batch_size=f"{found.batch_size:,}{' (auto)' if size is None else ''}",
        headline=number(found.tokens_per_second),
        interval=interval_words(found.ci95),
        rate=_rate(found, axis),
        memory=bar(peak / most, "Peak memory, of the largest") if peak and most else None,
        link=local_link(state.run, REPORT),
        is_best=state.run is not None and overview.best.get(state.precision) == state.run,
    )


def _rate(found: MeasuredPoint, axis: Axis) -> Drawing:
    low, high = map(axis.place, found.ci95 or (found.tokens_per_second,) * 2)
    x = axis.place(found.tokens_per_second)
    ceiling = found.ceiling_tokens_per_second
    strokes = (
        ()
        if ceiling is None
        else (Stroke(axis.place(ceiling), 3, axis.place(ceiling), 23, "peak"),)
    )
    words = f"{number(found.tokens_per_second)} tokens/s"
    words += "" if ceiling is None else f", ceiling {number(ceiling)} tokens/s"
    areas = (Area(0, 10, x, 6, "bar"), Area(low, 7, high - low, 12, "whisker-band"))
    return Drawing(words, _ROW, areas, strokes, dots=(Dot(x, 13, 4, "block"),))
