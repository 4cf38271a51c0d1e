"""How two throughputs compare: their ratio with its interval, and whether it is within 5 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: rules.md, Verdicts: a repetition within 5 % may make a verdict REPRODUCED.
LIMIT_PERCENT = 5.0
Interval = tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """A throughput over the one it repeats."""

    ratio: float
    #: 95 % interval of the ratio; None where one of the two has none.
    ci95: Interval | None

    @property
    def difference_percent(self) -> float:
        """How much more there is, in percent of what is repeated."""
        return (self.ratio - 1) * 100

    @property
    def is_within_limit(self) -> bool:
        """Tell whether the difference is 5 % at most: the figures decide, as in rules.md."""
        # Rounded, as (1.05 - 1) * 100 is a little more than 5.
        return round(abs(self.difference_percent), 9) <= LIMIT_PERCENT

    @property
    def is_settled(self) -> bool | None:
        """Tell whether the whole interval says the same; None without an interval."""
        if self.ci95 is None:
            return None
        ends = (Agreement(end, None).is_within_limit for end in self.ci95)
        far = self.ci95[0] > 1 or self.ci95[1] < 1
        return all(ends) if self.is_within_limit else far and not any(ends)


def agreement(
    rate: float, ci95: Interval | None, original: float, original_ci95: Interval | None
) -> Agreement:
    """Return how ``rate`` compares with ``original``, both in tokens per second.

    The interval is the method of variance estimates recovery for a ratio of two independent
    figures, on logarithms: each end lies as far from the ratio as the root of the squares of the
    distances that its two intervals leave (Zou & Donner 2008, Statistics in Medicine 27, 1693).
    """
    return Agreement(rate / original, _interval(rate, ci95, original, original_ci95))


def _interval(
    rate: float, ci95: Interval | None, original: float, original_ci95: Interval | None
) -> Interval | None:
    if ci95 is None or original_ci95 is None or min(ci95[0], original_ci95[0]) <= 0:
        return None  # an interval that reaches 0 says nothing of a ratio
    below, above = (math.log(rate / ci95[0]), math.log(ci95[1] / rate))
    under, over = (math.log(original / original_ci95[0]), math.log(original_ci95[1] / original))
    ratio = rate / original
    return ratio * math.exp(-math.hypot(below, over)), ratio * math.exp(math.hypot(above, under))
