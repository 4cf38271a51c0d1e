"""Tests whether two runs differ, with a rank test on raw step times; knows the test's limits.

Mann-Whitney's U (1947) tests whether a step of the first run tends to take less time than a step of
the second run, without assuming a distribution. The test assumes independent observations, but
steps of a process are correlated: clocks, heat and neighbours change slowly. A second p-value is
therefore given, for the number of independent steps left by the autocorrelation. Example: 500
correlated steps may be worth 40 independent steps. Neither p-value covers the variation from
process to process: only the interval of the ratio does, and only with repeats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Times = Sequence[Sequence[float]]

#: Fewest values of a run for a p-value.
FEWEST = 5
_MOST_LAGS = 1000
_MOST_CORRELATED = 0.99


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney's test of two runs' times a token."""

    #: Number of values of base and of ``other``: steps, or fence blocks (``of`` tells which).
    values: tuple[int, int]
    of: str
    #: Number of independent values worth as much as ``values``.
    independent_values: tuple[float, float]
    #: Share of all pairs (a base value, an ``other`` value) with ``other`` shorter; ties: half.
    other_is_faster: float
    #: Two-sided; treats every value as independent.
    p_value_as_independent: float
    #: Two-sided; for the number of independent values.
    p_value: float

    @property
    def words(self) -> str:
        """The test in two sentences, with both p-values."""
        worth = " and ".join(f"{count:.3g}" for count in self.independent_values)
        return (
            f"times a token, Mann-Whitney: {self.other_is_faster:.1%} of pairs have the run "
            f"faster, p {_p(self.p_value)}; {self.values[0]} and {self.values[1]} {self.of}, as "
            f"correlated as they are worth {worth} (taken as independent: p "
            f"{_p(self.p_value_as_independent)}). It says whether these processes differ, not "
            "whether others would."
        )


def _p(value: float) -> str:
    return "below 1e-12" if value < 1e-12 or math.isnan(value) else f"{value:.2g}"


def rank_test(base: Times, other: Times, of: str) -> RankTest | None:
    """Return the test of two runs' times, a sequence for each process; None with too few values.

    The variance of U / (n m) is (1/n + 1/m) / 12 for independent values. For correlated values the
    variance is (tau_n/n + tau_m/m) / 12, with tau the integrated autocorrelation time of the ranks.
    z shrinks by the square root of the variances' quotient. z is compared with Student's t for the
    number of independent values, not with the normal distribution. With few values Student's t errs
    towards no difference (simulated: at most 5 % of equal runs are called different, up to
    correlations of 0.95 and down to 50 steps). Example: tau 4 on both sides halves z.
    """
    if min(sum(map(len, base)), sum(map(len, other))) < FEWEST:
        return None
    import numpy as np
    from scipy import stats

    a, b = (np.concatenate([np.asarray(one, float) for one in side]) for side in (base, other))
    n, m = len(a), len(b)
    if np.ptp(np.concatenate([a, b])) == 0.0:
        return RankTest((n, m), of, (float(n), float(m)), 0.5, 1.0, 1.0)
    u, p = stats.mannwhitneyu(a, b, alternative="two-sided", method="asymptotic")
    ranks = stats.rankdata(np.concatenate([a, b]))
    worth = (_independent(ranks[:n], base), _independent(ranks[n:], other))
    inflated = (1 / worth[0] + 1 / worth[1]) / (1 / n + 1 / m)
    z = float(stats.norm.isf(p / 2)) / math.sqrt(inflated)
    return RankTest(
        values=(n, m),
        of=of,
        independent_values=worth,
        other_is_faster=float(u) / (n * m),
        p_value_as_independent=float(p),
        p_value=float(2 * stats.t.sf(z, max(1.0, sum(worth) - 2))),
    )


def _independent(ranks: npt.NDArray[np.float64], processes: Times) -> float:
    """Return the number of independent values in ``ranks``, concatenated over ``processes``.

    The number of values is divided by an integrated autocorrelation time, the longer of two. The
    first is Geyer's initial positive sequence (1992, "Practical Markov Chain Monte Carlo", section
    3.3), each process around the process's own mean. The second is the time of a first-order
    autoregression. The estimate of the autoregression's correlation r is corrected for a known
    downward bias of (1 + 4 r) / n in a series of n (Marriott and Pope 1954, "Bias in the estimation
    of autocorrelations").
    """
    import numpy as np

    series, at = [], 0
    for process in processes:
        part = ranks[at : at + len(process)]
        series.append(part - part.mean() if len(part) else part)
        at += len(process)
    count = sum(map(len, series))
    power = sum(float(np.dot(one, one)) for one in series)
    if power == 0.0:
        return float(count)
    lags = min(_MOST_LAGS, min(map(len, series)) // 2)

    def correlation(lag: int) -> float:
        return sum(float(np.dot(one[: len(one) - lag], one[lag:])) for one in series) / power

    total = 0.0
    for lag in range(0, lags - 1, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0.0:
            break
        total += pair
    length = count / len(series)
    first = min(_MOST_CORRELATED, correlation(1) + (1 + 4 * correlation(1)) / length)
    return float(count) / max(1.0, 2 * total - 1, (1 + first) / (1 - first))
