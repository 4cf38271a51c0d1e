"""Rounding errors of gradients that are added up over micro-batches in 16 bits.

The sum over 256 micro-batches is 2 % off in BF16, in every honest run. A limit of 1.5 times such an
error would leave room for products in 8 bits (an opponent: 1.8 times the tokens/s, by count). So
the part of the honest error that is from sums does not count 1.5 times, but once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmb.config import Precision

#: Explicit bits of a significand.
_BITS = {"bfloat16": 7, "float16": 10}
#: Root of the mean square of a rounding error, in last places: evenly distributed.
_EVEN = 12**-0.5
#: Root of the mean of 1 / m^2 for significands m of 1 to 2 with evenly distributed logarithms.
_SIGNIFICANDS = math.sqrt(3 / 8 / math.log(2))
#: Least limit, as a share of the way from 1 to the usual limit. Example: 1.15 for 1.5.
_LEAST = 0.3


@dataclass(frozen=True)
class RoundedSums:
    """The additions of a gradient over the micro-batches of a step."""

    #: Number of gradients that are added up.
    count: int
    #: The sums are in the format of the weights.
    precision: Precision

    @property
    def error(self) -> float:
        """Least relative error of the sums, root mean square; 0 in 32 bits and without sums.

        Each addition rounds. If gradients are much alike, the partial sum of the first k of N is
        k / N of the sum, and so is the rounding error: the squares add up to N / 3 times the square
        of a single error. Of gradients without any likeness they add up to N / 2 times. Sums of
        very similar gradients have larger errors, because small gradients vanish in large sums.
        Example: 0.015 for 256 gradients in BF16.
        """
        bits = _BITS.get(self.precision.stored_dtype)
        if bits is None or self.count < 2:
            return 0.0
        return 2.0**-bits * _EVEN * _SIGNIFICANDS * math.sqrt(self.count / 3)

    def times(self, times: float, honest: float, runs: int = 1) -> float:
        """Return the limit in ``honest`` errors, which include those of the sums.

        ``times`` is the limit without sums. ``runs``: 1 for a distance from the reference, 2 for a
        distance between two runs, each with sums of its own. Example: 1.23 for an honest error of
        0.02, 256 gradients in BF16, and 1.5 times.
        """
        error = self.error
        if not error:
            return times
        own = max(0.0, honest**2 - error**2)
        allowed = runs * (honest**2 - own) + times**2 * own
        return max(math.sqrt(allowed) / honest, 1 + _LEAST * (times - 1))
