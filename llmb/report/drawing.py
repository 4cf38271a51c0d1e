"""Shapes of a figure as data, drawn by a macro of ``template/parts.html.jinja`` as inline SVG.

Places along x are in per cent of the figure's width, places along y in pixels: text keeps its size
on a phone, and no script has to measure the page. Python writes no markup; the template escapes
every text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Anchor = Literal["start", "middle", "end"]
#: Steps of an axis: 1, 2 or 5 times a power of ten.
_ROUND = (1, 2, 5, 10)
#: Units of ``seconds``, the smallest first.
_TIMES = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
#: From this number of seconds on, minutes are easier to read.
_MINUTES_FROM_S = 600.0


@dataclass(frozen=True)
class Area:
    """A rectangle; ``title`` is shown where the pointer rests."""

    x: float
    y: float
    width: float
    height: float
    style: str
    title: str = ""


@dataclass(frozen=True)
class Stroke:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str


@dataclass(frozen=True)
class Dot:
    """A circle of ``r`` pixels."""

    x: float
    y: float
    r: float
    style: str
    title: str = ""


@dataclass(frozen=True)
class Label:
    """A text; ``anchor`` says which end of the text is at ``x``."""

    x: float
    y: float
    text: str
    anchor: Anchor = "start"
    style: str = "soft"


@dataclass(frozen=True)
class Drawing:
    """A figure of ``height`` pixels; ``name`` says in words the same as the figure.

    ``note`` stands in the caption, such as the height of the highest bar.
    """

    name: str
    height: int
    areas: tuple[Area, ...] = ()
    strokes: tuple[Stroke, ...] = ()
    #: Lines through points: x in per cent, y in pixels.
    traces: tuple[tuple[tuple[float, float], ...], ...] = ()
    dots: tuple[Dot, ...] = ()
    labels: tuple[Label, ...] = ()
    note: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """Each trace as the points of an SVG ``polyline`` that is 1,000 wide."""
        return tuple(" ".join(f"{10 * x:.1f},{y:.1f}" for x, y in trace) for trace in self.traces)


@dataclass(frozen=True)
class Axis:
    """A range of numbers laid along 0 to 100 per cent of a figure."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float], margin: float = 0.0) -> Axis:
        """Return the axis of all finite ``values``, with ``margin`` of its length at both ends.

        Equal values have an axis as well: 5 and 5 lie in the middle of 4.5 to 5.5.
        """
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite, default=0.0), max(finite, default=1.0)
        if high <= low:
            pad = abs(low) / 10 or 1.0
            return cls(low - pad, high + pad)
        pad = margin * (high - low)
        return cls(low - pad, high + pad)

    def place(self, value: float) -> float:
        """Return the place of ``value`` in per cent, at least 0 and at most 100."""
        share = (value - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def holds(self, value: float) -> bool:
        """Tell whether ``value`` lies on the axis."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 5) -> tuple[float, ...]:
        """Return at most ``most`` round numbers on the axis. Example: 0, 20, 40 for 0 to 45."""
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(times * power for times in _ROUND if times * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return tuple(round(number * step, 12) for number in range(first, last + 1))


@dataclass(frozen=True)
class LogAxis:
    """A range of positive numbers, laid logarithmically along 0 to 100 per cent of a figure."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Iterable[float]) -> LogAxis:
        """Return the axis of all positive ``values``, with 6 % of its length at both ends.

        A single value has an axis as well: 100 lies in the middle of 80 to 125.
        """
        logs = [math.log10(value) for value in values if 0.0 < value < math.inf]
        low, high = min(logs, default=0.0), max(logs, default=1.0)
        pad = max(0.06 * (high - low), 0.1 if high - low < 0.1 else 0.0)
        return cls(10 ** (low - pad), 10 ** (high + pad))

    def place(self, value: float) -> float:
        """Return the place of ``value`` in per cent, at least 0 and at most 100."""
        low, high = math.log10(self.low), math.log10(self.high)
        share = (math.log10(value) - low) / (high - low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def ticks(self, most: int = 5) -> tuple[float, ...]:
        """Return at most ``most`` round numbers on the axis. Example: 10, 100 for 8 to 240."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        powers = [10.0**power for power in range(first, last + 1)]
        tried = [[p for p in powers if self.low <= p <= self.high][:: 1 + len(powers) // most]]
        for times in ((1, 3), (1, 2, 5)):
            every = [n * power for power in powers for n in times]
            tried.append([tick for tick in every if self.low <= tick <= self.high])
        fitting = [ticks for ticks in tried if 2 <= len(ticks) <= most]
        if fitting:
            return tuple(round(tick, 12) for tick in fitting[-1])
        if self.high / self.low < 10:
            return Axis(self.low, self.high).ticks(most)
        return tuple(tried[0][:most])


def x_axis(
    axis: Axis | LogAxis, y: float, text: Callable[[float], str], most: int = 5
) -> tuple[list[Stroke], list[Label]]:
    """Return the ticks below a figure and their labels, kept inside the figure's width."""
    strokes, labels = [Stroke(0, y, 100, y, "grid")], []
    for value in axis.ticks(most):
        x = axis.place(value)
        anchor: Anchor = "start" if x < 5 else "end" if x > 95 else "middle"
        strokes.append(Stroke(x, y, x, y + 4, "grid"))
        labels.append(Label(x, y + 17, text(value), anchor))
    return strokes, labels


def time_axis(axis: Axis, y: float, most: int = 5) -> tuple[list[Stroke], list[Label]]:
    """Return ticks and labels of an axis in seconds, all in one unit. Example: 0, 5, 10 min."""
    size, unit = _unit(max(abs(axis.low), abs(axis.high)))
    inner = Axis(axis.low / size, axis.high / size)
    return x_axis(inner, y, lambda value: f"{value:,.4g} {unit}", most)


def _unit(seconds_: float) -> tuple[float, str]:
    if seconds_ >= _MINUTES_FROM_S:
        return 60.0, "min"
    return max((one for one in _TIMES if seconds_ >= one[0]), default=_TIMES[-1])


def seconds(value: float) -> str:
    """Return a time with its unit. Example: ``18.2 ms``, ``0 s``, ``12 min``."""
    size, unit = _unit(abs(value))
    return f"{value / size:,.4g} {unit}" if unit == "min" else f"{value / size:.3g} {unit}"


def thinned(values: Sequence[float], most: int) -> Iterator[tuple[int, float]]:
    """Yield index and value of every n-th value, so that at most ``most`` are left."""
    stride = max(1, -(-len(values) // most))
    for index in range(0, len(values), stride):
        yield index, values[index]
