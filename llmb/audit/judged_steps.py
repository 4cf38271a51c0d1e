"""Rule G1 in runs with judged steps: drawn steps are as near to the reference as honest steps.

Worker, honest run and reference compute a judged step from the same weights and tokens. Nothing
adds up over steps, so the limits are those of rule E1, and not the wider ones of rule L1.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmb.audit import equivalence
from llmb.audit.compared_rows import ComparedRows
from llmb.audit.distance import UNSEEN, Gap, ratio
from llmb.audit.honest_error import HonestError
from llmb.audit.sums import RoundedSums
from llmb.config import Precision

#: On an accelerator, the honest error of a judged step may be at most this many times the honest
#: error of the last step, which is compared with the host's: for all parameters together, and for
#: one (rule E1). A plugin in the process of the honest run can add noise to the judged steps alone.
#: At width 64 honest errors were 0.81 to 1.25 times that of the last step with 2 layers, up to 2.1
#: times with 12, and 1.54 times for a parameter.
_ROUGHER, _PART_ROUGHER = 2.0, 4.0
#: Least effective number of elements of a kind, the samples of all layers joined.
_FEW_OF_KIND = 2 * equivalence.FEW
ALL = "all gradients"
_LAYER = re.compile(r"\.\d+(?=\.)")


def kind_of(name: str) -> str:
    """Return the kind of the parameter ``name``, the same in all layers.

    Example: ``layers.*.mlp.up_proj.weight`` for ``layers.3.mlp.up_proj.weight``.
    """
    return _LAYER.sub(".*", name)


@dataclass(frozen=True)
class Distance:
    """Relative error of the worker, and of an honest run, in one judged step."""

    step: int
    #: What the error is of. Example: ``layers.*.mlp.up_proj.weight``.
    of: str
    measured: float
    honest: float
    #: Allowed number of honest errors.
    times: float

    @property
    def ratio(self) -> float:
        """The error in units of the limit; infinite for NaN."""
        return ratio(self.measured, self.times * self.honest)

    def text(self) -> str:
        """Return the distance in words, with the limit."""
        is_number = not math.isnan(self.measured)
        times = f"{self.measured / self.honest:.3g}" if is_number else "not a number of"
        of = self.of if self.of == ALL else f"the gradient of {self.of}"
        verb = "are" if self.of == ALL else "is"
        return (
            f"in step {self.step} {of} {verb} {times} times as far from the reference as an honest "
            f"run's (limit {self.times:.3g})"
        )


class JudgedSteps:
    """Distances of the worker's gradients from the reference in the judged steps."""

    def __init__(
        self,
        steps: Sequence[int],
        worker: ComparedRows,
        honest: Sequence[ComparedRows],
        last: HonestError | None,
        precision: Precision,
        model: Collection[str],
        sums: RoundedSums,
    ) -> None:
        """Judge ``worker`` beside the runs ``honest``, of which the larger error counts.

        ``last`` has the honest errors of the last step (rule E1), which limit those of the judged
        steps; None where no plugin had a part in the runs ``honest``. ``model`` has the names of
        the model's parameters. A stored parameter with another name holds several of them, for
        example every ``o_proj``, and has the limit of a kind.
        """
        self._model, self._sums, self._precision = model, sums, precision
        self._steps, self._worker, self._honest = steps, worker, honest
        self._last, self._least = last, equivalence.least_error(precision)
        known = precision.judged_as
        assert known is not None  # other formats have no honest run
        self._of_all, self._of_part = known.times
        self._of_kind = (self._of_all + self._of_part) / 2

    def distances(self) -> Iterator[Distance]:
        """Yield for each judged step the distance of all parameters, of each kind, and of each."""
        for number, step in enumerate(self._steps):
            yield from self._of_step(number, step)

    def worst(self) -> Distance:
        """Return the distance nearest to its limit, or furthest beyond."""
        return max(self.distances(), key=lambda one: one.ratio)

    def furthest(self) -> Distance:
        """Return the distance of all parameters together in the step nearest to the limit."""
        own = (one for one in self.distances() if one.of == ALL)
        return max(own, key=lambda one: one.ratio)

    def _of_step(self, number: int, step: int) -> Iterator[Distance]:
        mine = {
            name: own[number]
            for name, own in self._worker.gaps.items()
            if not name.endswith(UNSEEN) and own[number].length
        }
        ways = [{name: way.gaps[name][number] for name in mine} for way in self._honest]
        most = math.inf if self._last is None else _ROUGHER * self._last.of_all
        honest = _between(self._least, _error(ways, [*mine]), most)
        times = self._sums.times(self._of_all, honest)
        yield Distance(step, ALL, _error([mine], [*mine]), honest, times)
        told = [name for name in mine if self._enough(name, number)]
        kinds: dict[str, list[str]] = {}
        for name in mine:
            kinds.setdefault(kind_of(name), []).append(name)
        errors = [_error(ways, [name]) for name in told]
        usual = statistics.median_high(errors) if errors else 0.0
        groups = [
            (kind, names, self._of_kind)
            for kind, names in kinds.items()
            if self._is_told_as_kind(names, number)
        ]
        groups += [(name, [name], self._of_part) for name in told]
        for of, names, times in groups:
            honest = max(usual, _error(ways, names))
            honest = _between(self._least, honest, self._most_of(names))
            most = equivalence.most_times_of_part(honest, self._precision)
            times = min(self._sums.times(times, honest), most)
            yield Distance(step, of, _error([mine], names), honest, times)

    def _enough(self, name: str, number: int) -> bool:
        """Tell whether the sample of a parameter tells enough alone (rule E1)."""
        return self._worker.told[name][number] >= equivalence.FEW

    def _is_told_as_kind(self, names: Sequence[str], number: int) -> bool:
        """Tell whether the samples of ``names``, a kind of parameter, tell enough together.

        Example: of queries that are stored with keys and values, a step shows 21 elements and not
        64.
        """
        if len(names) == 1:  # a stack of all layers
            return names[0] not in self._model and self._enough(names[0], number)
        squares = fourths = 0.0
        for name in names:
            square = self._worker.gaps[name][number].length ** 2
            squares += square
            fourths += square**2 / (self._worker.told[name][number] or math.inf)
        return squares**2 >= _FEW_OF_KIND * fourths > 0

    def _most_of(self, names: Sequence[str]) -> float:
        if self._last is None:
            return math.inf
        parts = [max(self._last.usual, self._last.of_parts.get(name, 0.0)) for name in names]
        return _PART_ROUGHER * max(parts)


def _error(ways: Sequence[Mapping[str, Gap]], names: Sequence[str]) -> float:
    """Return the largest relative error of the parameters ``names`` together; NaN stays."""
    return equivalence.roughest({name: way[name] for name in names} for way in ways)


def _between(least: float, value: float, most: float) -> float:
    """Return ``value`` within the bounds; if not finite, ``most``, or ``least`` without bound."""
    if not math.isfinite(value):
        value = most if math.isfinite(most) else least
    return max(least, min(most, value))
