"""Errors of an honest run, and the limits that rule L1 derives for a worker's steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llmb.audit import equivalence
from llmb.audit.distance import gaps, total
from llmb.config import TF32, Precision
from llmb.records.arrays import Arrays

#: Allowed distance of samples from the replay's, in honest errors of one step (rule E1):
#: differences add up over the steps. For all parameters together, and for each parameter. Calls do
#: not drift apart: a call that rule E1 allows (1.5 honest errors) is 1.8 honest errors away from an
#: honest call. Measured: 0 to 1.2.
_TIMES, _TIMES_OF_CALLS, _TIMES_IN_FP32 = 3.0, 2.25, 12.0
#: Allowed drift between two honest trainings in BF16, whatever the error of one step is: this
#: factor times the square root of the number of layers (32 at most); a single parameter may drift
#: 1.5 times as far. Of 12 layers honest trainings were 0.013 to 0.024 apart (a parameter: 0.029),
#: of 24 layers 0.018 to 0.022. Copies of the weights of v alone, one step late, were 0.049 to 0.067
#: apart (docs/adr/0058).
_DRIFT, _MOST_LAYERS, _DRIFT_OF_A_PART = 8.7e-3, 32, 1.5


@dataclass(frozen=True)
class HonestError:
    """Relative errors of an honest run in a real step, against the reference (rule E1)."""

    of_all: float
    #: Error by canonical name; a parameter without an entry has the median error.
    of_parts: Mapping[str, float]
    times: float
    #: Lower bounds of the limits: for all parameters together, and for each parameter.
    least_of_all: float = 0.0
    least_of_part: float = 0.0

    @property
    def usual(self) -> float:
        """Median error of all parameters."""
        return statistics.median(self.of_parts.values()) if self.of_parts else 0.0

    def at_least(self, limit: float) -> HonestError:
        """Return the same errors, with limits of ``limit`` or more."""
        return replace(
            self,
            least_of_all=max(limit, self.least_of_all),
            least_of_part=max(limit, self.least_of_part),
        )

    def drifting(self, apart: float) -> HonestError:
        """Return the same errors, with honest trainings ``apart`` (a parameter: 1.5 times)."""
        return replace(self, least_of_all=apart, least_of_part=_DRIFT_OF_A_PART * apart)

    def at_most(self, limit: float) -> HonestError:
        """Return the same errors, with limits of at most ``limit``."""
        most = limit / self.times
        return replace(
            self,
            of_all=min(most, self.of_all),
            of_parts={name: min(most, error) for name, error in self.of_parts.items()},
            least_of_all=min(limit, self.least_of_all),
            least_of_part=min(limit, self.least_of_part),
        )

    @property
    def limit_of_all(self) -> float:
        """Largest allowed error of the samples of all parameters together."""
        return max(self.least_of_all, self.times * self.of_all)

    def limit(self, name: str) -> float:
        """Return the largest allowed error of the samples of a parameter."""
        return max(self.least_of_part, self.by_rounding(name))

    def by_rounding(self, name: str) -> float:
        """Return the allowed error of a parameter's samples from the error of one step alone."""
        return self.times * max(self.usual, self.of_parts.get(name, 0.0))


def honest_error(
    honest: Sequence[Arrays], reference: Arrays, precision: Precision, *, trains: bool = True
) -> HonestError:
    """Return the larger error of the ``honest`` runs, never below the error of two kernels."""
    runs = [gaps(way, reference, "live/") for way in honest]
    least = equivalence.least_error(precision)
    return HonestError(
        of_all=max([least, *(total(run.values()).error for run in runs)]),
        of_parts={name: max([least, *(run[name].error for run in runs)]) for name in runs[0]},
        times=times_of(precision, trains=trains),
    )


def times_of(precision: Precision, *, trains: bool = True) -> float:
    """Return the limit in honest errors. Example: 12 for FP32.

    Kernels of FP32 and TF32 differ in few last places. A narrower format whose model is stored in
    float32, such as FP8, rounds as the same format stored in bfloat16.
    """
    if precision.dtype == "float32" and precision.bits >= TF32.bits:
        return _TIMES_IN_FP32
    return _TIMES if trains else _TIMES_OF_CALLS


def drift(layers: float) -> float:
    """Return the allowed drift of all gradients of two honest BF16 trainings (docs/adr/0058).

    The result is a relative distance. Example: 0.030 for 12 layers.
    """
    return _DRIFT * math.sqrt(min(layers, _MOST_LAYERS))
