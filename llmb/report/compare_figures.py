"""Figures of a comparison: tokens/s, ratios around 1, and step times, all runs on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from llmb.comparison.compare import Comparison
from llmb.comparison.figures import Run, times_per_token
from llmb.measure import statistics
from llmb.report.drawing import Area, Axis, Dot, Drawing, Stroke, seconds, time_axis, x_axis
from llmb.report.render import number

#: Height of the row of one run in pixels; bins of a distribution.
_ROW = 26
_BINS = 48
_OF_OUTCOME = {"better": "better", "worse": "worse"}


def rates(runs: Sequence[Run]) -> tuple[Drawing, ...]:
    """Return a drawing for each run, all on one axis: tokens/s and its interval, and the base."""
    figures = [run.figures["tokens_per_second"] for run in runs]
    axis = _rates_on(runs)
    base = axis.place(figures[0].value)
    found = []
    for figure in figures:
        low, high = map(axis.place, figure.interval or (figure.value, figure.value))
        name = f"{number(figure.value)} tokens/s"
        name += f", 95 % interval {_ends(figure.interval)}" if figure.interval else ""
        found.append(
            Drawing(
                name,
                _ROW,
                (Area(low, 8, high - low, 10, "interval"),),
                (Stroke(base, 0, base, _ROW, "base"),),
                dots=(Dot(axis.place(figure.value), 13, 5, "block"),),
            )
        )
    return tuple(found)


def rate_axis(runs: Sequence[Run]) -> Drawing:
    """Return the axis below ``rates``."""
    strokes, labels = x_axis(_rates_on(runs), 1, number, 4)
    return Drawing("axis of tokens/s", 22, (), tuple(strokes), labels=tuple(labels))


def _rates_on(runs: Sequence[Run]) -> Axis:
    figures = [run.figures["tokens_per_second"] for run in runs]
    ends = [end for figure in figures for end in (figure.interval or ())]
    return Axis.around([*ends, *(figure.value for figure in figures)], 0.06)


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def ratios(comparison: Comparison) -> dict[str, Drawing]:
    """Return the drawing of each ratio by the figure's name, all on one axis with 1 marked."""
    ends = [1.0]
    for ratio in comparison.ratios:
        ends += [ratio.ratio, *(ratio.interval or ())]
    axis = Axis.around(ends, 0.04)
    one = axis.place(1.0)
    found = {}
    for ratio in comparison.ratios:
        low, high = map(axis.place, ratio.interval or (ratio.ratio, ratio.ratio))
        style = _OF_OUTCOME.get(ratio.outcome, "unshown")
        words = f"ratio {ratio.ratio:.4f}, {ratio.outcome}"
        found[ratio.name] = Drawing(
            words,
            20,
            (Area(low, 6, high - low, 8, f"ratio-{style}"),),
            (Stroke(one, 0, one, 20, "base"),),
            dots=(Dot(axis.place(ratio.ratio), 10, 4, f"dot-{style}"),),
        )
    return found


def step_times(runs: Sequence[Run]) -> tuple[Drawing, ...]:
    """Return the distribution of seconds a token of each run, all with the same axis and bins.

    Steps count, or fence blocks where a run's step clock is ``enqueue``. The last drawing is the
    axis. Example: two runs of equal work, the faster further left.
    """
    clocks = {one.step_clock for run in runs for one in run.record.timing.repeats}
    by_blocks = "enqueue" in clocks
    times = [
        sorted(t for repeat in times_per_token(run.record, by_blocks=by_blocks) for t in repeat)
        for run in runs
    ]
    axis = Axis.around([value for every in times for value in every], 0.02)
    found = [_distribution(every, axis) for every in times]
    strokes, labels = time_axis(axis, 1, 4)
    return (
        *found,
        Drawing("axis of seconds a token", 22, (), tuple(strokes), labels=tuple(labels)),
    )


def _distribution(values: Sequence[float], axis: Axis) -> Drawing:
    counts, height = [0] * _BINS, 44
    for value in values:
        counts[min(_BINS - 1, int(axis.place(value) / 100 * _BINS))] += 1
    width = 100 / _BINS
    areas = tuple(
        Area(n * width, height - tall, width, tall, "bar", f"{count} of {len(values)}")
        for n, count in enumerate(counts)
        if count
        for tall in (max(2.0, (height - 6) * count / max(counts)),)
    )
    middle = statistics.quantile(values, 0.5)
    x = axis.place(middle)
    name = f"{len(values)} times a token, median {seconds(middle)}"
    return Drawing(name, height, areas, (Stroke(x, 0, x, height, "median"),))
