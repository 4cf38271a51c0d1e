"""Rule L1 where no process can repeat a step exactly: directions of all steps' gradients.

Every kernel draws masks of its own for dropout. In formats of fewer than 8 bits honest runs drift
apart within a few steps, and a loss scale leaves out steps by rounding. A process still repeats all
steps, without dropout, and directions are compared: a step without masks has the mean of a worker's
possible gradients. A single parameter's direction scatters, the mean of all hardly does
(docs/adr/0087, 0088).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from llmb.audit.compared_rows import Rows
from llmb.audit.distance import UNSEEN, effective, or_worst
from llmb.audit.rule import Rule
from llmb.records.arrays import Array
from llmb.records.finding import Finding, Status

#: Most steps whose scaled gradients overflowed in the worker alone: near the largest number of
#: float16 rounding decides whether a step overflows.
MOST_OVERFLOWED = 1
#: Elements with most of a parameter's length: with fewer a direction is chance. Of 200 parameters
#: 41 elements each are sampled, and normally distributed elements count as a third.
_FEW = 8


@dataclass(frozen=True)
class Least:
    """Least cosine of a step, or of all steps in the mean.

    The limit follows from the cosine of judged steps, which rule G1 has found honest. The limit by
    ``share`` and the limit by ``times`` both hold.
    """

    #: In cosines of judged steps.
    share: float
    #: Most squared sine, in squared sines of judged steps, and an amount to add; None: any. The
    #: sine is the part of a gradient that is not along the repeated gradient.
    times: float | None = None
    more: float = 0.0
    #: Least cosine whatever the judged steps have. A step without gradients has 0.
    whatever: float = 0.0

    def limit(self, usual: float) -> float:
        """Return the least cosine where judged steps have ``usual``.

        Examples: ``Least(0.75, 2, 0.05)`` needs 0.80 for a usual 0.92, and 0.97 for 1.
        """
        found = max(self.whatever, self.share * usual)
        if self.times is None:
            return found
        squared = 1 - self.times * max(0.0, 1 - usual**2) - self.more
        return max(found, math.sqrt(max(0.0, squared)))


class DirectionLimits(NamedTuple):
    """The limits of one kind of training."""

    of_a_step: Least
    of_all: Least


#: With dropout. At nemo-bert-base's size honest steps of one run had cosines of 0.50 to 0.83, 0.68
#: in the mean; at width 64 0.83 to 0.92. Gradients of another step had -0.3 to 0.3.
DROPPED = DirectionLimits(Least(0.5, whatever=0.2), Least(0.75))
#: Without dropout. A step of half of its sequences has 0.7 of an honest cosine. In honest runs the
#: squared sine was at most 1.5 times that of judged steps in a step, 1.1 times in the mean.
ROUNDED = DirectionLimits(Least(0.75, 2.0, 0.05, whatever=0.2), Least(0.9, 1.5, 0.02))


@dataclass(frozen=True)
class StepDirections:
    """Gradients of a worker's steps beside those of the same steps, repeated by another process."""

    #: Step -> mean cosine of its parameters. Steps without enough gradients are left out.
    cosines: Mapping[int, float]
    #: Number of repeated steps.
    count: int
    #: Mean cosine of the judged steps; of all steps if no judged step was repeated.
    usual: float
    #: Steps in which the gradients of the worker, or of the other process, are not finite.
    overflowed: int
    limits: DirectionLimits

    @classmethod
    def of(
        cls,
        shown: Rows,
        again: Rows,
        judged: Collection[int],
        limits: DirectionLimits,
        *,
        may_overflow: bool = False,
    ) -> StepDirections:
        """Compare the gradients ``shown`` with ``again``, those of the repeated steps.

        ``may_overflow``: the loss is scaled. Steps that overflowed in both processes are left out,
        and ``MOST_OVERFLOWED`` steps that overflowed in one of them.
        """
        found, overflowed, alone = dict[int, float](), 0, 0
        for number in range(len(again)):
            own, right = shown.parts(number), again.parts(number)
            if may_overflow and not (_is_finite(own) and _is_finite(right)):
                overflowed += 1
                alone += _is_finite(right)
                if alone <= MOST_OVERFLOWED:
                    continue
            told = [name for name in right if _is_told(name, right[name])]
            if told:
                found[number] = statistics.fmean(_cosine(own[name], right[name]) for name in told)
        usual = [found[step] for step in judged if step in found]
        mean = statistics.fmean(usual or found.values() or [0.0])
        return cls(found, len(again), mean, overflowed, limits)

    @property
    def mean(self) -> float:
        """The mean cosine of all steps."""
        return statistics.fmean(self.cosines.values())

    @property
    def worst(self) -> int:
        """The step with the smallest cosine."""
        return min(self.cosines, key=lambda step: or_worst(self.cosines[step], -math.inf))

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each broken limit."""
        worst = self.cosines[self.worst]
        of_step, of_all = (one.limit(self.usual) for one in self.limits)
        told = "point elsewhere than those of the repeated"
        if not worst >= of_step:  # a NaN must not pass
            yield (
                f"the gradients of step {self.worst} {told} step: cosine {worst:.2f} "
                f"(limit {of_step:.2f})"
            )
        if not self.mean >= of_all:
            yield (
                f"the gradients of all steps {told} steps: cosine {self.mean:.2f} "
                f"(limit {of_all:.2f})"
            )

    def finding(self, rule: Rule, evidence: Sequence[str], made: int) -> Finding:
        """Return the finding of ``rule`` on a worker that made ``made`` steps."""
        faults = [*self.faults()]
        of_step, of_all = (one.limit(self.usual) for one in self.limits)
        good = (
            f"{self.count} of {made} steps repeated: the gradients of each point where those of "
            "judged steps do"
        )
        if self.overflowed:
            good += f"; {self.overflowed} overflowed, and were left out"
        return rule.finding(
            Status.FAIL if faults else Status.PASS,
            "; ".join(faults) if faults else good,
            measured=f"cosine {self.mean:.2f} in the mean, {self.cosines[self.worst]:.2f} in step "
            f"{self.worst}",
            honest=f"{self.usual:.2f} in judged steps",
            limit=f"{of_all:.2f} in the mean, {of_step:.2f} in each step",
            basis="calibrated",
            observer="worker, honest run, verifier",
            evidence=tuple(evidence),
        )


def _is_finite(parts: Mapping[str, Array]) -> bool:
    return all(math.isfinite(value) for part in parts.values() for value in part)


def _is_told(name: str, right: Array) -> bool:
    """Tell whether enough elements of a parameter hold its length in the repeated step."""
    return not name.endswith(UNSEEN) and effective(right) >= _FEW


def _cosine(own: Array, right: Array) -> float:
    """Return the cosine between two gradients; 0 if a gradient is zero, NaN if not finite."""
    lengths = math.hypot(*own) * math.hypot(*right)
    if not math.isfinite(lengths):
        return math.nan
    return math.fsum(map(mul, own, right)) / lengths if lengths else 0.0
