"""Rule L1 with dropout: each step of a worker beside the same step without dropout.

Every kernel draws masks of its own, so no other process can repeat a step with dropout. A process
repeats all steps without dropout instead: such a step has the mean of a worker's possible
gradients. Masks change the length of a gradient, all parameters alike, so directions are compared.
A single parameter's direction scatters, the mean of all hardly does (docs/adr/0087).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from llmb.audit.compared_rows import Rows
from llmb.audit.distance import UNSEEN
from llmb.audit.equivalence import effective
from llmb.audit.rule import Rule
from llmb.records.arrays import Array
from llmb.records.finding import Finding, Status

#: Least cosine of a step, and of all steps together, in cosines of the judged steps, which rule G1
#: has found honest. At nemo-bert-base's size honest steps of one run had cosines of 0.50 to 0.83,
#: 0.68 in the mean; at width 64 0.83 to 0.92. Gradients of another step had -0.3 to 0.3.
OF_A_STEP, OF_ALL = 0.5, 0.75
#: Least cosine of a step, whatever the judged steps have.
LEAST = 0.2
#: Elements with most of a parameter's length: with fewer a direction is chance. Of 200 parameters
#: 41 elements each are sampled, and normally distributed elements count as a third.
_FEW = 8


@dataclass(frozen=True)
class DroppedStream:
    """Replayed steps beside the same steps without dropout."""

    #: Step -> mean cosine of its parameters. Steps without enough gradients are left out.
    cosines: Mapping[int, float]
    #: Number of replayed steps.
    count: int
    #: Mean cosine of the judged steps; of all steps if no judged step was replayed.
    usual: float

    @classmethod
    def of(cls, shown: Rows, again: Rows, judged: Collection[int]) -> DroppedStream:
        """Compare the gradients ``shown`` with ``again``, those of the steps without dropout."""
        found = dict[int, float]()
        for number in range(len(again)):
            own, right = shown.parts(number), again.parts(number)
            told = [name for name in right if _is_told(name, right[name])]
            if told:
                found[number] = statistics.fmean(_cosine(own[name], right[name]) for name in told)
        usual = [found[step] for step in judged if step in found]
        return cls(found, len(again), statistics.fmean(usual or found.values() or [0.0]))

    @property
    def mean(self) -> float:
        """The mean cosine of all steps."""
        return statistics.fmean(self.cosines.values())

    @property
    def worst(self) -> int:
        """The step with the smallest cosine."""
        return min(self.cosines, key=lambda step: _or_worst(self.cosines[step]))

    def faults(self) -> Iterator[str]:
        """Yield a sentence for each broken limit."""
        of_step, of_all = max(LEAST, OF_A_STEP * self.usual), OF_ALL * self.usual
        if not self.cosines[self.worst] >= of_step:  # a NaN must not pass
            yield (
                f"the gradients of step {self.worst} point elsewhere than those without dropout: "
                f"cosine {self.cosines[self.worst]:.2f} (limit {of_step:.2f})"
            )
        if not self.mean >= of_all:
            yield (
                f"the gradients of all steps point elsewhere than those without dropout: cosine "
                f"{self.mean:.2f} (limit {of_all:.2f})"
            )

    def finding(self, rule: Rule, evidence: Sequence[str], made: int) -> Finding:
        """Return the finding of ``rule`` on a worker that made ``made`` steps."""
        faults = [*self.faults()]
        good = (
            f"{self.count} of {made} steps replayed without dropout: the gradients of each point "
            "where those of judged steps do"
        )
        return rule.finding(
            Status.FAIL if faults else Status.PASS,
            "; ".join(faults) if faults else good,
            measured=f"cosine {self.mean:.2f} in the mean, {self.cosines[self.worst]:.2f} in step "
            f"{self.worst}",
            honest=f"{self.usual:.2f} in judged steps",
            limit=f"{OF_ALL:g} of judged steps in the mean, {OF_A_STEP:g} in each step, and "
            f"{LEAST:g}",
            basis="calibrated",
            observer="worker, honest run, verifier",
            evidence=tuple(evidence),
        )


def _is_told(name: str, right: Array) -> bool:
    """Tell whether enough elements of a parameter hold its length in a step without dropout."""
    return not name.endswith(UNSEEN) and effective(right) >= _FEW


def _cosine(own: Array, right: Array) -> float:
    """Return the cosine between two gradients; 0 if a gradient is zero."""
    lengths = math.hypot(*own) * math.hypot(*right)
    return math.fsum(map(mul, own, right)) / lengths if lengths else 0.0


def _or_worst(value: float) -> float:
    return -math.inf if math.isnan(value) else value
