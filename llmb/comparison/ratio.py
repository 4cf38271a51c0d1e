"""The ratio of a figure of two runs, with its 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from llmb.comparison.figures import Better, Figure, Interval

Outcome = Literal["better", "worse", "no difference shown", "no interval"]


@dataclass(frozen=True)
class Ratio:
    """A figure of two runs: ``ratio`` is other over base."""

    name: str
    unit: str
    base: float
    other: float
    ratio: float
    #: None where either figure has none.
    interval: Interval | None
    better: Better | None

    @property
    def outcome(self) -> Outcome:
        """Which of the two is better, as far as the interval shows it."""
        if self.interval is None or self.better is None:
            return "no interval"
        if self.interval[0] <= 1.0 <= self.interval[1]:
            return "no difference shown"
        return "better" if (self.ratio > 1.0) == (self.better == "more") else "worse"


def ratio_of(base: Figure, other: Figure) -> Ratio:
    """Return the ratio of two figures above 0 of one quantity.

    The runs are independent, so the squares of their relative standard errors (bootstrap over
    repeats, then fence blocks: ``measure.statistics``) add up to that of the logarithm of the ratio
    (delta method). Student's t has the freedom of Welch (1947), as each error rests on few values.
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
    from scipy import stats

    a, b = ((one.spread.error / one.value) ** 2 for one in (base, other) if one.spread)
    if a + b == 0.0:
        return ratio, ratio
    freedom = (a + b) ** 2 / (a**2 / base.spread.freedom + b**2 / other.spread.freedom)
    half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(a + b)
    low, high = ratio * math.exp(-half), ratio * math.exp(min(half, 700.0))
    return (low, high) if math.isfinite(high) else None
