"""Figures of one run: timeline, step times, rates of the fence blocks, telemetry, shares."""

from __future__ import annotations

import math
import statistics as means
from collections.abc import Sequence
from dataclasses import dataclass

from llmb.measure import statistics
from llmb.records.run_record import RepeatTiming, RunRecord, Timing
from llmb.report.drawing import (
    Anchor,
    Area,
    Axis,
    Dot,
    Drawing,
    Label,
    Stroke,
    seconds,
    thinned,
    time_axis,
    x_axis,
)
from llmb.report.render import number

#: Largest number of steps that are drawn one by one; longer runs are drawn by fence blocks.
_MOST_STEPS = 1_000
_MOST_DOTS = 400
_MOST_REPEATS = 8
_MOST_GAUGES = 8
_LEAST_BINS, _MOST_BINS = 10, 40
#: Row of one repeat in the timeline, and room above for the words START and STOP, in pixels.
_ROW, _HEAD = 40, 20
#: Largest distance of a step stamp at START or STOP from the fence's stamp, of the window's length.
_APART = 0.1


@dataclass(frozen=True)
class Span:
    """A step, or a fence block of steps, in seconds from START."""

    begin: float
    end: float
    style: str
    title: str


def timeline(timing: Timing) -> Drawing:
    """Return every step of every repeat on one time axis, 0 at each repeat's START.

    Fences are strokes, the timed window is a frame. Steps before the window and after are soft.
    """
    repeats = timing.repeats[:_MOST_REPEATS]
    steps = sum(len(repeat.step_ns) for repeat in repeats)
    rows = [_spans(repeat, by_step=steps <= _MOST_STEPS) for repeat in repeats]
    axis = Axis.around([s for row in rows for span in row for s in (span.begin, span.end)], 0.01)
    areas, strokes, labels = [], [], []
    for n, (repeat, row) in enumerate(zip(repeats, rows, strict=True)):
        top = n * _ROW + _HEAD
        stop = _from_start(repeat, repeat.stop_ns)
        begin, end = axis.place(0.0), axis.place(stop)
        areas.append(Area(begin, top - 4, end - begin, 32, "window"))
        for span in row:
            x = axis.place(span.begin)
            areas.append(Area(x, top, axis.place(span.end) - x, 24, span.style, span.title))
        strokes += [
            Stroke(x, top - 4, x, top + 28, "fence")
            for ns in repeat.fence_ns
            for x in (axis.place(_from_start(repeat, ns)),)
        ]
        if n == 0:
            labels.append(Label(begin, top - 8, "START"))
            labels.append(Label(end, top - 8, "STOP", "end"))
    bottom = len(repeats) * _ROW + _HEAD - 6
    lines, texts = time_axis(axis, bottom)
    audited = sum(len(repeat.audited_steps) for repeat in repeats)
    name = (
        f"{timing.timed_steps} timed steps in {seconds((timing.stop_ns - timing.start_ns) / 1e9)} "
        f"after {timing.warmup_steps} untimed, {len(timing.fence_ns)} fences, "
        f"{audited} audited steps, {len(timing.repeats)} processes"
    )
    shapes = tuple(strokes) + tuple(lines)
    return Drawing(name, bottom + 24, tuple(areas), shapes, labels=tuple(labels + texts))


def _from_start(timing: RepeatTiming, ns: int) -> float:
    return (ns - timing.start_ns) / 1e9


def _spans(timing: RepeatTiming, *, by_step: bool) -> list[Span]:
    """Return the steps of a repeat, or the fence blocks where step stamps cannot be drawn."""
    every = _steps(timing) if by_step and _is_stepwise(timing) else _blocks(timing)
    if timing.tail is not None and timing.tail.ended_ns > timing.stop_ns:
        end = _from_start(timing, timing.tail.ended_ns)
        begin = _from_start(timing, timing.stop_ns)
        words = f"{timing.tail.steps} steps after the window, {seconds(end - begin)}"
        every.append(Span(begin, end, "step-untimed", words))
    return every


def _is_stepwise(timing: RepeatTiming) -> bool:
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    if timing.step_clock == "enqueue" or not 0 < begin < end <= len(timing.step_ns):
        return False
    apart = _APART * (timing.stop_ns - timing.start_ns)
    pairs = (
        (timing.step_ns[begin - 1], timing.start_ns),
        (timing.step_ns[end - 1], timing.stop_ns),
    )
    return all(abs(step - fence) <= apart for step, fence in pairs)


def _steps(timing: RepeatTiming) -> list[Span]:
    first, last = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    found = []
    for step in range(1, len(timing.step_ns)):  # nobody stamped the beginning of the first step
        begin, end = (_from_start(timing, timing.step_ns[n]) for n in (step - 1, step))
        is_timed = first <= step < last
        is_audited = step in timing.audited_steps
        words = f"step {step + 1}, {seconds(end - begin)}"
        style = ("step-timed", "step-other")[step % 2] if is_timed else "step-untimed"
        style = "step-audited" if is_audited else style
        words += (", audited" if is_audited else "") + ("" if is_timed else ", untimed")
        found.append(Span(begin, end, style, words))
    return found


def _blocks(timing: RepeatTiming) -> list[Span]:
    found = []
    ends = list(zip(timing.fence_steps, timing.fence_ns, strict=False))
    for n in range(1, len(ends)):
        (first, begin_ns), (last, end_ns) = ends[n - 1], ends[n]
        begin, end = _from_start(timing, begin_ns), _from_start(timing, end_ns)
        is_timed = timing.start_ns <= begin_ns and end_ns <= timing.stop_ns
        is_audited = any(first <= step < last for step in timing.audited_steps)
        style = ("step-timed", "step-other")[n % 2] if is_timed else "step-untimed"
        words = f"steps {first + 1} to {last}, {seconds(end - begin)}"
        words += ", one of them audited" if is_audited else ""
        found.append(Span(begin, end, "step-audited" if is_audited else style, words))
    return found


def step_trace(timing: Timing) -> Drawing | None:
    """Return the time of each timed step in order; None: stamps give no times."""
    values = _step_times(timing)
    if len(values) < 2:
        return None
    height, top, bottom = 190, 18, 160
    axis = Axis.around(values, 0.08)

    def y(value: float) -> float:
        return bottom - axis.place(value) / 100 * (bottom - top)

    across = Axis(-0.5, len(values) - 0.5)
    by_block = timing.step_clock == "enqueue"
    per, first = ("fence block", 1) if by_block else ("step", timing.warmup_steps + 1)
    audited = set() if by_block else {n + 1 - first for n in timing.audited_steps}
    points = [*thinned(values, _MOST_DOTS)]
    dots = [
        Dot(
            across.place(n),
            y(value),
            4.0 if n in audited else 2.2,
            "audited" if n in audited else "dot",
            f"{per} {n + first}, {seconds(value)}" + (", audited" if n in audited else ""),
        )
        for n, value in points
    ]
    middle = y(statistics.quantile(sorted(values), 0.5))
    strokes = [Stroke(0, middle, 100, middle, "median")]
    labels = []
    for tick in axis.ticks(4):
        strokes.append(Stroke(0, y(tick), 100, y(tick), "grid"))
        labels.append(Label(0, y(tick) - 3, seconds(tick)))
    labels.append(Label(0, height - 12, f"{per} {first}"))
    labels.append(Label(100, height - 12, f"{per} {first + len(values) - 1}", "end"))
    trace = tuple((across.place(n), y(value)) for n, value in points)
    name = f"Time of each {per} in order: from {seconds(min(values))} to {seconds(max(values))}"
    return Drawing(name, height, (), tuple(strokes), (trace,), tuple(dots), tuple(labels))


def step_histogram(timing: Timing) -> Drawing | None:
    """Return the distribution of step times, with median, p5 and p95; None: no times."""
    values = sorted(_step_times(timing))
    if len(values) < 4:
        return None
    axis = Axis.around(values)
    counts = _counts(values, axis)
    height, top, bottom = 190, 34, 160
    width = 100 / len(counts)
    size = (axis.high - axis.low) / len(counts)
    areas = [
        Area(
            n * width + 0.15,
            bottom - (bottom - top) * count / max(counts),
            width - 0.3,
            (bottom - top) * count / max(counts),
            "bar",
            f"{count} between {seconds(axis.low + n * size)} and "
            f"{seconds(axis.low + (n + 1) * size)}",
        )
        for n, count in enumerate(counts)
        if count
    ]
    marks = [(level, statistics.quantile(values, level)) for level in (0.05, 0.5, 0.95)]
    strokes = [
        Stroke(x, top - 8, x, bottom, "median" if level == 0.5 else "quantile")
        for level, value in marks
        for x in (axis.place(value),)
    ]
    lines, texts = time_axis(axis, bottom, 4)
    words = ", ".join(f"{_LEVELS[level]} {seconds(value)}" for level, value in marks)
    labels = [
        Label(x, 20, _LEVELS[level], _side(x))
        for level, value in marks
        for x in (axis.place(value),)
    ]
    name = f"Distribution of {len(values)} step times: {words}"
    note = f"highest bar: {max(counts)} of {len(values)}"
    return Drawing(
        name, height, tuple(areas), (*strokes, *lines), labels=(*labels, *texts), note=note
    )


_LEVELS = {0.05: "p5", 0.5: "median", 0.95: "p95"}


def _side(x: float) -> Anchor:
    return "start" if x < 15 else "end" if x > 85 else "middle"


def _step_times(timing: Timing) -> tuple[float, ...]:
    try:
        return statistics.step_times_s(timing)
    except (ValueError, IndexError, ZeroDivisionError):
        return ()


def _counts(values: Sequence[float], axis: Axis) -> list[int]:
    """Return the number of sorted ``values`` in each bin, by the rule of Freedman and Diaconis.

    The width of a bin is 2 IQR / n^(1/3) (Freedman and Diaconis, 1981).
    """
    between = statistics.quantile(values, 0.75) - statistics.quantile(values, 0.25)
    length = axis.high - axis.low
    width = 2 * between / len(values) ** (1 / 3) or length
    bins = min(_MOST_BINS, max(_LEAST_BINS, math.ceil(length / width)))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - axis.low) / length * bins))] += 1
    return counts


def block_rates(record: RunRecord) -> Drawing | None:
    """Return tokens/s of each fence block of every repeat, with headline and interval."""
    repeats = record.timing.repeats[:_MOST_REPEATS]
    tokens = record.workload.tokens_per_step
    rows = [_rates(repeat, tokens) for repeat in repeats]
    result = record.result
    every = [rate for row in rows for rate in row]
    if not every:
        return None
    axis = Axis.around([*every, *(result.ci95 or ()), result.tokens_per_second], 0.06)
    bottom = 16 * len(rows) + 12
    areas = []
    if result.ci95 is not None:
        low, high = map(axis.place, result.ci95)
        areas.append(Area(low, 2, high - low, bottom - 2, "interval", "95 % interval"))
    x = axis.place(result.tokens_per_second)
    dots = [
        Dot(axis.place(rate), 14 + 16 * n, 4, "block", f"repeat {n + 1}: {number(rate)} tokens/s")
        for n, row in enumerate(rows)
        for rate in row
    ]
    lines, texts = x_axis(axis, bottom, number, 4)
    name = f"Tokens/s of {len(every)} fence blocks: {number(min(every))} to {number(max(every))}"
    strokes = (Stroke(x, 2, x, bottom, "headline"), *lines)
    return Drawing(name, bottom + 22, tuple(areas), strokes, dots=tuple(dots), labels=tuple(texts))


def _rates(timing: RepeatTiming, tokens_per_step: int) -> list[float]:
    try:
        found = statistics.weighed(timing, tokens_per_step)
    except (ValueError, IndexError):
        return []
    return [tokens / (ns / 1e9) for tokens, ns in found if ns > 0]


@dataclass(frozen=True)
class Gauge:
    """A gauge of the plugin at the fences of the headline's repeat."""

    name: str
    least: float
    mean: float
    most: float
    drawing: Drawing


def gauges(timing: Timing) -> tuple[Gauge, ...]:
    """Return the plugin's gauges and counters over the fences, at most eight."""
    names = dict.fromkeys(name for reading in timing.telemetry for name in reading)
    found = []
    for name in list(names)[:_MOST_GAUGES]:
        values = [one[name] for one in timing.telemetry if math.isfinite(one.get(name, math.nan))]
        if values:
            drawing = _sparkline(name, values)
            found.append(Gauge(name, min(values), means.fmean(values), max(values), drawing))
    return tuple(found)


def _sparkline(name: str, values: Sequence[float]) -> Drawing:
    axis, height = Axis.around(values, 0.1), 44
    across = Axis(-0.5, len(values) - 0.5)
    points = tuple(
        (across.place(n), height - 4 - axis.place(value) / 100 * (height - 8))
        for n, value in thinned(values, _MOST_DOTS)
    )
    dots = tuple(Dot(x, y, 2.2, "dot") for x, y in points) if len(points) <= 60 else ()
    words = f"{name} at {len(values)} fences: {min(values):,.4g} to {max(values):,.4g}"
    return Drawing(words, height, traces=(points,), dots=dots)


@dataclass(frozen=True)
class BarPart:
    """A part of a whole; ``share`` of 1. ``style`` is a colour of ``template/run.css``."""

    name: str
    share: float
    text: str
    style: str


#: The colour of a part that is not one of the others.
REST = "part-rest"


def colour(n: int) -> str:
    """Return the style of the n-th part; colours repeat after eight."""
    return f"part-{n % 8}"


def shares_bar(what: str, parts: Sequence[BarPart]) -> Drawing:
    """Return one bar of all ``parts``; their shares add up to 1 or less."""
    areas, x = [], 0.0
    for part in parts:
        width = max(0.0, min(100.0 - x, 100 * part.share))
        areas.append(Area(x, 0, width, 22, part.style, f"{part.name}: {part.text}"))
        x += width
    said = ", ".join(f"{part.name} {part.text}" for part in parts)
    return Drawing(f"{what}: {said}", 22, tuple(areas))


def bar(share: float, what: str) -> Drawing:
    """Return a bar that is filled to ``share`` of 1."""
    filled = 100 * min(1.0, max(0.0, share))
    areas = (Area(0, 2, 100, 12, "room"), Area(0, 2, filled, 12, "bar"))
    return Drawing(f"{what}: {share:.0%}", 16, areas)
