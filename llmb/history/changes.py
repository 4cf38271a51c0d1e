"""Change points: the runs of a series from which on the level is another.

Two steps. First ``ruptures`` (Truong, Oudre and Vayatis 2020, "Selective review of offline change
point detection methods", Signal Processing 167) finds the segmentation with the least squared error
plus a penalty per change point. The penalty is low: the segmentation may hold too many points, as
single slow runs (other programs) look like a step. Then every point must pass a rank test
(Mann-Whitney) of the runs before and after; the test knows how correlated neighbouring runs are.
The weakest point is dropped until every point passes. docs/adr/0070 has the measured rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Values = npt.NDArray[np.float64]

#: Fewest runs of a level. A step is found from this number of runs on, at the earliest.
MIN_RUNS = 4
#: Penalty of a change point in squared noise, times ln(number of runs).
_PENALTY = 2.0
#: Rate of false alarms to aim at. A change point is chosen among all n runs, so its p-value must be
#: below a part of n (Bonferroni). Example: 0.00033 in a history of 60 runs.
_FALSE_ALARMS = 0.02
#: Normal quantile: median absolute deviation -> standard deviation.
_MAD = 1.4826
_MOST_CORRELATED = 0.95
#: A residual beyond this number of standard deviations counts as that many.
_OUTLIER = 4.5


@dataclass(frozen=True)
class ChangePoint:
    """A step between two runs of a series."""

    #: Index of the first run of the new level.
    at: int
    #: Median of the level before, and of the level from ``at`` on.
    before: float
    after: float
    p_value: float

    @property
    def change(self) -> float:
        """The relative step. Example: -0.05 for a fall of 5 %."""
        return self.after / self.before - 1


def is_available() -> bool:
    """Tell whether ``ruptures`` is installed (``pip install 'llmb[history]'``)."""
    return find_spec("ruptures") is not None


def change_points(values: Sequence[float]) -> tuple[ChangePoint, ...]:
    """Return the change points of ``values`` above 0, in their order.

    Steps are relative: logarithms are compared. Fewer than 8 values have no change point. Example:
    30 values around 100 with a deviation of 1, then 30 around 95, have one change point, at 30.
    """
    import numpy as np

    logs = np.log(np.asarray(values, float))
    if len(logs) < 2 * MIN_RUNS or not np.isfinite(logs).all():
        return ()
    points = _candidates(logs)
    tested: list[float] = []
    while points:
        tested = _p_values(logs, points)
        weakest = max(range(len(points)), key=tested.__getitem__)
        if tested[weakest] < _FALSE_ALARMS / len(logs):
            break
        points = [*points[:weakest], *points[weakest + 1 :]]
    ends = [0, *points, len(values)]
    levels = [math.exp(float(np.median(logs[a:b]))) for a, b in pairwise(ends)]
    return tuple(
        ChangePoint(at, levels[n], levels[n + 1], tested[n]) for n, at in enumerate(points)
    )


def _candidates(logs: Values) -> list[int]:
    """Return the change points of the best segmentation; some may be chance."""
    import numpy as np
    import ruptures

    noise = _noise(logs)
    if noise == 0.0:  # equal neighbours: any step counts
        noise = float(np.std(logs)) / len(logs) or 1.0
    model = ruptures.KernelCPD(kernel="linear", min_size=MIN_RUNS)
    ends = model.fit((logs / noise).reshape(-1, 1)).predict(pen=_PENALTY * math.log(len(logs)))
    return [int(end) for end in ends[:-1]]


def _noise(logs: Values) -> float:
    """Return the standard deviation of the noise, from neighbours: a step leaves it as it is."""
    import numpy as np

    steps = np.diff(logs)
    return float(_MAD * np.median(np.abs(steps - np.median(steps))) / math.sqrt(2))


def _p_values(logs: Values, points: Sequence[int]) -> list[float]:
    """Return the p-value of each point: the level before against the level after.

    z shrinks by sqrt((1 + r) / (1 - r)), with r the correlation of neighbouring runs.
    """
    from scipy import stats

    ends = [0, *points, len(logs)]
    r = _correlation(logs, ends)
    shrunk = math.sqrt((1 - r) / (1 + r))
    found = []
    for n in range(len(points)):
        before, after = logs[ends[n] : ends[n + 1]], logs[ends[n + 1] : ends[n + 2]]
        p = stats.mannwhitneyu(before, after, method="asymptotic").pvalue
        found.append(float(2 * stats.norm.sf(shrunk * stats.norm.isf(p / 2))))
    return found


def _correlation(logs: Values, ends: Sequence[int]) -> float:
    """Return the correlation of neighbours around the levels between ``ends``, 0 to 0.95.

    The estimate of n values is (1 + 4 r) / n too low (Marriott and Pope 1954), which is added.
    """
    import numpy as np

    rest = logs.copy()
    for a, b in pairwise(ends):
        rest[a:b] -= np.median(logs[a:b])
    most = _OUTLIER * _noise(logs)
    rest = np.clip(rest, -most, most)
    power = float(np.dot(rest, rest))
    if power == 0.0:
        return 0.0
    r = float(np.dot(rest[1:], rest[:-1])) / power
    return min(_MOST_CORRELATED, max(0.0, r + (1 + 4 * r) / len(logs)))
