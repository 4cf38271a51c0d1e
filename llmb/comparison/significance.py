"""Whether two runs differ, from raw step times: what a rank test can say, and what it cannot.

Mann-Whitney's U (1947) asks whether a step of one run tends to take less time than a step of the
other, without assuming a distribution. It takes every step for an independent observation, and the
steps of a process are not: clocks, heat and neighbours change slowly. So a second p-value is given,
for as many independent steps as the autocorrelation leaves. Neither says anything of processes that
were not run: what is between one process and the next is in the interval of the ratio, and only
where there are repeats.
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

#: Fewer values of a run say nothing that is worth a p-value.
FEWEST = 5
_MOST_LAGS = 1000


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney's test of two runs' times a token."""

    #: Values of base and other; steps, or fence blocks.
    values: tuple[int, int]
    of: str
    #: How many independent values these are worth.
    independent: tuple[float, float]
    #: Share of pairs of one value of each in which the other run's is the shorter; ties half.
    other_is_faster: float
    #: Two-sided; as if every value were independent.
    p_value_as_independent: float
    #: Two-sided; for the independent values alone.
    p_value: float


def rank_test(base: Times, other: Times, of: str) -> RankTest | None:
    """Return the test of two runs' times, a sequence for each process; None with too few.

    The variance of U / (n m) is (1/n + 1/m) / 12, and of correlated values (tau_n/n + tau_m/m) / 12
    with the integrated autocorrelation times tau of the ranks: z is smaller by the root of it.
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
        independent=worth,
        other_is_faster=float(u) / (n * m),
        p_value_as_independent=float(p),
        p_value=float(2 * stats.norm.sf(z)),
    )


def _independent(ranks: npt.NDArray[np.float64], processes: Times) -> float:
    """Return how many independent values ``ranks`` are worth, those of ``processes`` in a row.

    The integrated autocorrelation time by Geyer's initial positive sequence (1992, "Practical
    Markov Chain Monte Carlo", section 3.3), each process around its own mean.
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
    return float(count) / max(1.0, 2 * total - 1)
