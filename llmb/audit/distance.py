"""Distances between arrays: relative errors, and the bits of agreement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmb.records.arrays import Apart, Array

_MOST_BITS = 40.0  # identical, within measurable accuracy
#: Parameters invisible to a softmax: a key's bias adds the same number to all scores of a query.
#: The gradient is zero except for rounding, and a comparison would compare rounding.
#: ``KEYS`` ends the name of a key's bias that is stored by itself, and is fused in the model.
KEYS = " of keys"
UNSEEN = ("attention.self.key.bias", f"attn.c_attn.bias{KEYS}")
#: With fewer elements the slack of a part grows by the root, because errors of few elements are
#: chance. Example: a gain of 16 elements had 1.06 bits less than the honest run, 0.75 are allowed.
_FEW = 64
#: Share of the length of all gradients together below which a right gradient is rounding alone.
#: Where all tokens of a sequence are alike, all values are, and no score has a gradient: of such
#: text the reference's q_proj was 1e-10 of all gradients, an honest one in BF16 7e-7. The smallest
#: other gradient was 8e-4.
_ROUNDING = 2.0**-24


@dataclass(frozen=True)
class Gap:
    """Distance between the shown and the right values, and the length of the right values."""

    distance: float
    length: float
    #: Length of the shown values; NaN if evidence has the distance alone.
    shown: float = field(default=math.nan, compare=False)

    @property
    def share(self) -> float:
        """Share of the right values that the shown hold: 1 of honest values, 0 of none.

        Example: 0.5 for half of every value, and also for every value of half of the tokens.
        """
        if self.length == 0:
            return math.nan
        of_shown, of_distance = self.shown / self.length, self.distance / self.length
        return (1 + of_shown**2 - of_distance**2) / 2

    @property
    def error(self) -> float:
        """Relative error; infinite where the right values are all zero, unlike the shown."""
        if self.length == 0:
            return 0.0 if self.distance == 0 else math.inf
        return self.distance / self.length

    @property
    def bits(self) -> float:
        """-log2 of the relative error. Example: 10 bits for an error of 1/1024."""
        error = self.error
        if math.isnan(error) or math.isinf(error):
            return -_MOST_BITS
        return min(_MOST_BITS, -math.log2(error)) if error > 0 else _MOST_BITS


def gap(shown: Array | None, right: Array) -> Gap:
    """Return the gap of ``shown`` from ``right``; missing values count as zero.

    Evidence of an honest run may store the distance alone (``Apart``).
    """
    length = math.hypot(*right)
    if isinstance(shown, Apart):
        return Gap(math.inf if math.isnan(shown.distance) else shown.distance, length)
    if shown is None or len(shown) != len(right):
        return Gap(length, length, 0.0)
    distance = math.dist(shown, right)
    return Gap(math.inf if math.isnan(distance) else distance, length, math.hypot(*shown))


def gaps(shown: Mapping[str, Array], right: Mapping[str, Array], prefix: str) -> dict[str, Gap]:
    """Return the gap of each non-zero array of ``right`` with a name starting with ``prefix``.

    Returned names lack the prefix.
    """
    found = {
        name.removeprefix(prefix): gap(shown.get(name), array)
        for name, array in right.items()
        if name.startswith(prefix) and not name.endswith("/loss")
    }
    return {
        name: one
        for name, one in found.items()
        if one.length != 0 and not name.endswith(UNSEEN)  # a NaN stays
    }


def ratio(value: float, limit: float) -> float:
    """Return ``value / limit``; infinity for NaN, and for any value beyond a limit of 0."""
    if math.isnan(value) or (limit == 0 and value):
        return math.inf
    return value / limit if value else 0.0


def or_worst(value: float, worst: float) -> float:
    """Return ``value``, and ``worst`` for NaN: a NaN must not pass."""
    return worst if math.isnan(value) else value


def chance(elements: float | None) -> float:
    """Return the growth of the slack of a part of so many elements; None: many.

    Examples: 1 for 64 or more, 4 for 4.
    """
    return 1.0 if elements is None else math.sqrt(max(1.0, _FEW / max(1, elements)))


def effective(values: Array) -> float:
    """Return the effective number of elements of ``values``: (sum of x^2)^2 / sum of x^4.

    Examples: 1 where a single element outweighs all others; a third of the elements where
    ``values`` are Gaussian. With the squares as weights this is Kish's effective sample size
    (Survey Sampling, 1965).
    """
    largest = max(map(abs, values), default=0.0)
    if not 0 < largest < math.inf:
        return 0.0
    squares = [(value / largest) ** 2 for value in values]
    return sum(squares) ** 2 / sum(square * square for square in squares)


def is_rounding(one: Gap, whole: Gap, error: float) -> bool:
    """Tell whether the right gradient of ``one`` part is none beside the ``whole`` of all parts.

    The part may be off by the ``error`` that all parts together may have. No work is saved by
    numbers where the right ones are zero.
    """
    of_part, of_all = _ROUNDING * whole.length, error * whole.length
    return one.length <= of_part and one.distance <= of_all  # a NaN is something


def total(parts: Iterable[Gap]) -> Gap:
    """Return the gap of all parts together."""
    every = list(parts)
    return Gap(math.hypot(*(p.distance for p in every)), math.hypot(*(p.length for p in every)))
