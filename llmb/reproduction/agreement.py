"""Compare two throughputs: the ratio, the interval of the ratio, and the 5 % limit."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: rules.md, Verdicts: a repetition within 5 % may make a verdict REPRODUCED. Example: 1,040
#: tokens/s after 1,000 tokens/s.
LIMIT_PERCENT = 5.0
Interval = tuple[float, float]


@dataclass(frozen=True)
class Agreement:
    """The throughput of a repetition divided by the throughput of the original."""

    ratio: float
    #: 95 % interval of the ratio; None if a run has no interval.
    ci95: Interval | None

    @property
    def difference_percent(self) -> float:
        """Difference in percent of the original. Example: 4.0 for a ratio of 1.04."""
        return (self.ratio - 1) * 100

    @property
    def is_within_limit(self) -> bool:
        """Tell whether the difference is 5 % at most; intervals do not count (rules.md)."""
        # Rounded: (1.05 - 1) * 100 is slightly more than 5 in floating point.
        return round(abs(self.difference_percent), 9) <= LIMIT_PERCENT

    @property
    def is_settled(self) -> bool | None:
        """Tell whether the whole interval confirms ``is_within_limit``; None: no interval."""
        if self.ci95 is None:
            return None
        ends = (Agreement(end, None).is_within_limit for end in self.ci95)
        far = self.ci95[0] > 1 or self.ci95[1] < 1
        return all(ends) if self.is_within_limit else far and not any(ends)


def agreement(
    rate: float, ci95: Interval | None, original: float, original_ci95: Interval | None
) -> Agreement:
    """Return the agreement of ``rate`` with ``original``, both in tokens/s.

    The interval is by the method of variance estimates recovery (MOVER) for a ratio of two
    independent figures, on logarithms: the distance of each end from the ratio is the root of the
    sum of two squares, one distance from each interval (Zou & Donner 2008, Statistics in Medicine
    27, 1693).
    """
    return Agreement(rate / original, _interval(rate, ci95, original, original_ci95))


def _interval(
    rate: float, ci95: Interval | None, original: float, original_ci95: Interval | None
) -> Interval | None:
    if ci95 is None or original_ci95 is None or min(ci95[0], original_ci95[0]) <= 0:
        return None  # no logarithm for an interval down to 0
    below, above = (math.log(rate / ci95[0]), math.log(ci95[1] / rate))
    under, over = (math.log(original / original_ci95[0]), math.log(original_ci95[1] / original))
    ratio = rate / original
    return ratio * math.exp(-math.hypot(below, over)), ratio * math.exp(math.hypot(above, under))
