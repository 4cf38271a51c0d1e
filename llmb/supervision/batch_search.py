"""The search for the batch size with the best throughput; each trial has a fresh worker."""

from __future__ import annotations

import math
from collections.abc import Callable

from llmb.errors import NotEnoughMemoryError
from llmb.records.run_record import BatchTrial, SearchLog

#: A doubling that gains less than this ends the climb: throughput has levelled off.
_LEVEL_GAIN = 0.02
_MOST_REFINEMENTS = 3


def search(
    measure: Callable[[int], BatchTrial],
    timed_steps: int,
    unit: int = 1,
    most: int | None = None,
) -> SearchLog:
    """Climb by doubling until memory ends or throughput levels off, then refine around the best.

    ``measure`` runs one batch size and reports running out of memory instead of raising. All sizes
    are multiples of ``unit`` and, except for the first size, at most ``most``. Example: the climb
    with ``most=48`` tries 1, 2, 4, 8, 16, 32 and 48.

    Raises:
        NotEnoughMemoryError: not even the smallest size fits.
    """
    trials: dict[int, BatchTrial] = {}

    def rate(units: int) -> float:
        if units not in trials:
            trials[units] = measure(units * unit)
        return trials[units].tokens_per_second or 0.0

    size, last = 1, math.inf if most is None else max(1, most // unit)
    slower = 0.0
    while (now := rate(size)) > slower * (1 + _LEVEL_GAIN) and size < last:
        slower, size = now, int(min(2 * size, last))
    for _ in range(_MOST_REFINEMENTS):
        best = max(trials, key=rate)
        untried = [n for n in _neighbours(best, trials) if n not in trials]
        if not rate(best) or not untried:
            break
        rate(untried[0])
    best = max(trials, key=rate)
    if not rate(best):
        raise NotEnoughMemoryError(
            f"no batch size works: {trials[best].message or f'batch size {unit} does not fit'}"
        )
    return SearchLog(timed_steps=timed_steps, trials=tuple(trials.values()), best=best * unit)


def _neighbours(best: int, tried: dict[int, BatchTrial]) -> list[int]:
    """Return the middles of the gaps above and below ``best``, the larger batch first."""
    above = min((n for n in tried if n > best), default=best)
    below = max((n for n in tried if n < best), default=best)
    return [(best + above) // 2, (best + below) // 2]
