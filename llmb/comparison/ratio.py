"""The ratio of a figure of two runs, with a 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llmb.comparison.figures import Better, Figure, Interval

#: Largest relative standard error with an interval; a wider interval would hold any ratio.
WIDEST = 10.0
Outcome = Literal["better", "worse", "no difference shown", "no interval"]


@dataclass(frozen=True)
class Ratio:
    """A figure of two runs: ``ratio`` is other over base."""

    name: str
    unit: str
    base: float
    other: float
    ratio: float
    #: None if either figure has no standard error.
    interval: Interval | None
    better: Better | None

    @property
    def outcome(self) -> Outcome:
        """Whether ``other`` is better or worse than ``base``, judged by the interval."""
        if self.interval is None or self.better is None:
            return "no interval"
        if self.interval[0] <= 1.0 <= self.interval[1]:
            return "no difference shown"
        return "better" if (self.ratio > 1.0) == (self.better == "more") else "worse"


def ratio_of(base: Figure, other: Figure) -> Ratio:
    """Return the ratio of two figures of one quantity, both above 0.

    Relative standard errors come from a bootstrap over repeats, then fence blocks
    (``measure.statistics``). The runs are independent: the squares of both relative errors add up
    to the squared standard error of the ratio's logarithm (delta method). Student's t has the
    degrees of freedom of Welch (1947), because each error rests on few values. Example: errors of
    3 % and 4 % give 5 %.
    """
    ratio = other.value / base.value
    return Ratio(
        name=base.name,
        unit=base.unit,
        base=base.value,
        other=other.value,
        ratio=ratio,
        interval=_interval(base, other, ratio),
        better=base.better,
    )


def _interval(base: Figure, other: Figure, ratio: float) -> Interval | None:
    if base.spread is None or other.spread is None:
        return None
    a, b = (one.spread.error / one.value for one in (base, other) if one.spread)
    error = math.hypot(a, b)
    if error == 0.0:
        return ratio, ratio
    if error > WIDEST:
        return None
    from scipy import stats

    parts = (a / error) ** 4 / base.spread.freedom + (b / error) ** 4 / other.spread.freedom
    half = float(stats.t.ppf(0.975, 1 / parts)) * error
    return ratio * math.exp(-half), ratio * math.exp(half)
