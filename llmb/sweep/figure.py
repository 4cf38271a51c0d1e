"""The figure of a sweep: throughput against batch size per precision, ceilings and memory limits.

Example: one curve for FP32 and one for BF16, batch sizes 1 to 64 on a logarithmic axis.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llmb.records.finding import Verdict
from llmb.records.sweep_overview import MeasuredPoint, Overview
from llmb.sweep.points import Boundary, boundary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Line = Literal["--", ":", ""]
FORMATS = ("svg", "png")
_SIZE_IN, _DPI = (8.0, 5.0), 150
#: Okabe and Ito's palette for colour-blind readers, without the yellow. Markers keep the figure
#: readable in grey. https://jfly.uni-koeln.de/color/
_LOOKS = (
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#56B4E9", "v"),
    ("#E69F00", "P"),
)
#: Room above the highest curve, and to both sides in powers of two.
_ABOVE, _BESIDE = 1.12, 2**0.4
_MOST_TICKS = 20
#: Length of a dot in the out-of-memory line, in line widths.
_DOT = 1.5


@dataclass(frozen=True)
class Curve:
    """One precision in the figure: measured points, smallest batch first."""

    precision: str
    measured: tuple[MeasuredPoint, ...]
    boundary: Boundary | None

    @property
    def ceiling(self) -> tuple[tuple[int, float], ...]:
        """Batch sizes, each with the measured ceiling in tokens/s."""
        found = ((m.batch_size, m.ceiling_tokens_per_second) for m in self.measured)
        return tuple((size, rate) for size, rate in found if rate is not None)


def curves(overview: Overview) -> tuple[Curve, ...]:
    """Return the curves to draw; a precision without measurements has only the memory boundary."""
    found = []
    for precision in overview.plan.precisions:
        own = [s.measured for s in overview.points if s.precision == precision and s.measured]
        end = boundary(overview.points, precision)
        if own or end:
            ordered = tuple(sorted(own, key=lambda each: each.batch_size))
            found.append(Curve(precision, ordered, end))
    return tuple(found)


def draw(overview: Overview) -> Mapping[str, bytes]:
    """Return the figure as file name -> bytes, such as ``sweep.svg``; empty without measurements.

    The same sweep gives the same bytes with the same matplotlib.
    """
    shown = curves(overview)
    if not any(curve.measured for curve in shown):
        return {}
    import matplotlib as mpl
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Ignore the user's matplotlib settings; a dollar sign in a vendor's name starts no formula.
    ours = mpl.rc_context(
        {"svg.hashsalt": "llmb", "text.parse_math": False, "font.family": "DejaVu Sans"}
    )
    with style.context("default"), ours:
        figure = Figure(figsize=_SIZE_IN, layout="constrained")
        FigureCanvasAgg(figure)
        _fill(figure, overview, shown)
        return {f"sweep.{kind}": _saved(figure, kind) for kind in FORMATS}


def _saved(figure: Figure, kind: str) -> bytes:
    target = io.BytesIO()
    stamp = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(target, format=kind, dpi=_DPI, metadata=stamp, facecolor="white")
    return target.getvalue()


def _fill(figure: Figure, overview: Overview, shown: Sequence[Curve]) -> None:
    axes = figure.subplots()
    for (colour, marker), curve in zip(_endless(), shown, strict=False):
        _curve(axes, curve, colour, marker)
        _end_of_memory(axes, curve, shown, colour)
    _scales(axes, shown)
    _words(figure, axes, overview, shown)


def _endless() -> Iterator[tuple[str, str]]:
    while True:
        yield from _LOOKS


def _curve(axes: Axes, curve: Curve, colour: str, marker: str) -> None:
    """Draw measured points with 95 % intervals, trials of batch-size searches, and the ceiling."""
    sizes = [m.batch_size for m in curve.measured]
    rates = [m.tokens_per_second for m in curve.measured]
    ends = [m.ci95 or (m.tokens_per_second, m.tokens_per_second) for m in curve.measured]
    # A record's interval may exclude the record's rate: an error bar must not be negative.
    below = [max(0.0, rate - low) for rate, (low, _) in zip(rates, ends, strict=True)]
    above = [max(0.0, high - rate) for rate, (_, high) in zip(rates, ends, strict=True)]
    axes.errorbar(
        sizes,
        rates,
        yerr=[below, above],
        color=colour,
        marker=marker,
        markersize=6,
        linewidth=1.8,
        elinewidth=1.1,
        capsize=4,
        label=curve.precision,
        zorder=3,
    )
    trials = [
        (trial.batch_size, trial.tokens_per_second)
        for m in curve.measured
        for trial in m.trials
        if trial.tokens_per_second is not None and trial.batch_size != m.batch_size
    ]
    if trials:
        tried, reached = zip(*trials, strict=True)
        axes.scatter(tried, reached, facecolors="none", edgecolors=colour, marker=marker, s=28)
    if curve.ceiling:
        points = _widened(curve.ceiling)
        axes.plot(*zip(*points, strict=True), color=colour, linestyle="--", linewidth=1.2)


def _end_of_memory(axes: Axes, curve: Curve, shown: Sequence[Curve], colour: str) -> None:
    """Draw the out-of-memory line; precisions with the same limit alternate dots in one line."""
    if curve.boundary is None:
        return
    size = curve.boundary.batch_size
    here = [c.precision for c in shown if c.boundary and c.boundary.batch_size == size]
    turn = here.index(curve.precision)
    pattern = (-_DOT * 2 * turn, (_DOT, _DOT * (2 * len(here) - 1)))
    axes.axvline(size, color=colour, linestyle=pattern, linewidth=1.6)


def _widened(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return ``points``; a single point is widened to a visible line."""
    if len(points) > 1:
        return points
    ((size, rate),) = points
    return [(size / _BESIDE, rate), (size * _BESIDE, rate)]


def _scales(axes: Axes, shown: Sequence[Curve]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    sizes = {m.batch_size for curve in shown for m in curve.measured}
    sizes |= {t.batch_size for curve in shown for m in curve.measured for t in m.trials}
    sizes |= {curve.boundary.batch_size for curve in shown if curve.boundary}
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) / _BESIDE, max(sizes) * _BESIDE)
    axes.xaxis.set_major_locator(FixedLocator(_apart(sorted(sizes))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:,.10g}"))
    axes.set_ylim(0, _ABOVE * max(_heights(shown)))
    axes.grid(visible=True, axis="y", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(sizes: Sequence[int]) -> list[int]:
    """Return the ``sizes`` to label on the axis, in order, with room between labels."""
    room = math.log2(sizes[-1] / sizes[0]) / _MOST_TICKS
    kept = [sizes[0]]
    for size in sizes[1:]:
        if math.log2(size / kept[-1]) >= room:
            kept.append(size)
    return kept


def _heights(shown: Sequence[Curve]) -> Iterator[float]:
    for curve in shown:
        for measured in curve.measured:
            yield measured.ci95[1] if measured.ci95 else measured.tokens_per_second
            yield measured.ceiling_tokens_per_second or 0.0
            yield measured.tokens_per_second
            yield from (trial.tokens_per_second or 0.0 for trial in measured.trials)


def _words(figure: Figure, axes: Axes, overview: Overview, shown: Sequence[Curve]) -> None:
    """Write title, axis labels and the legend of lines and markers."""
    from matplotlib.lines import Line2D

    ground, asked = overview.plan.ground, overview.plan.asked.request
    every = [m for curve in shown for m in curve.measured]
    marks = [word for word, true in _marks(every) if true]
    axes.set_xlabel("batch size (sequences per step)")
    axes.set_ylabel("throughput (tokens/s)")
    subject = f"{asked.workload}: throughput by batch size and precision"
    where = f"plugin {ground.plugin} on {ground.device}, llmb {ground.llmb_version}"
    axes.set_title("\n".join((subject, "; ".join((where, *marks)))), loc="left", fontsize=11)
    handles, _ = axes.get_legend_handles_labels()
    for label, line, mark in _kinds(shown):
        handles.append(
            Line2D(
                [],
                [],
                label=label,
                linestyle=line,
                marker=mark,
                color="#555555",
                markerfacecolor="none",
            )
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


def _kinds(shown: Sequence[Curve]) -> Iterator[tuple[str, _Line, str]]:
    """Yield label, line style and marker of ceilings, memory limits and search trials, if drawn."""
    if any(curve.ceiling for curve in shown):
        yield "measured ceiling", "--", ""
    ends = [curve.boundary for curve in shown if curve.boundary]
    if ends:
        how = " (by arithmetic)" if all(end.predicted for end in ends) else ""
        yield f"out of memory from here on{how}", ":", ""
    if any(m.trials for curve in shown for m in curve.measured):
        yield "search: three steps", "", "o"


def _marks(every: Sequence[MeasuredPoint]) -> Iterator[tuple[str, bool]]:
    yield "DEBUG, not comparable", any(m.class_ == "debug" for m in every)
    yield "INVALID runs included", any(m.verdict is Verdict.INVALID for m in every)
    yield "bars: 95 % intervals", any(m.ci95 for m in every)
