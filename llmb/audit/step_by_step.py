"""Rule L1, training: distance of each step of a worker from the same step of an honest run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from llmb.audit.compared_rows import FEW, ComparedRows
from llmb.audit.distance import UNSEEN, total
from llmb.audit.honest_error import HonestError
from llmb.audit.rule import PartFinding
from llmb.records.audited import Moment

#: Share of a parameter's usual length that one step may be off: a stale gradient is 1.4 off. In
#: narrow formats the limit is this many usual distances, if larger.
OF_A_STEP, USUAL = 0.4, 4.0
#: Share of the steps left out of totals of gradients, the steps furthest off: in some steps a sharp
#: softmax amplifies the roundings of all earlier steps. Of 66 steps of an honest run the three
#: furthest were 10 honest errors off, the others 2.5 together (docs/adr/0058).
LEFT_OUT = 0.05


class StepByStep:
    """Distances of the worker's samples from the honest run's, by step and parameter."""

    def __init__(
        self,
        compared: ComparedRows,
        honest: HonestError,
        least_of_element: float | None,
        moment: Moment | None = None,
    ) -> None:
        """Judge the replayed steps.

        ``least_of_element``: lower bound of the median element's limit, relative to the element;
        None where an honest run gets only the large elements right. ``moment``: the sampled moment,
        such as ``exp_avg``; None for gradients.
        """
        self._what, self._of = (f"{moment} ", f"{moment} of ") if moment else ("", "")
        self._together = moment or "all gradients"
        self.steps, self._honest, self._compared = compared.steps, honest, compared
        self._gaps = compared.gaps
        self._usual_steps = range(len(self.steps)) if moment else self._without_furthest()
        self._least_of_element = least_of_element

    def faults(self) -> list[str]:
        """Return a sentence for each distance beyond a limit."""
        honest, found = self._honest, list[str]()
        of_all, limit = self.together()
        lengths = self._lengths(self._usual_steps)
        if not of_all <= limit:  # a NaN must not pass
            found.append(f"{self._together} together are {of_all:.3g} off (limit {limit:.3g})")
            found[0] += f", furthest {self._worst(lengths)[0]}"
        worst, largest = self._worst(lengths)
        if not largest <= honest.limit(worst):
            limit = honest.limit(worst)
            found.append(f"{self._of}{worst} is {largest:.3g} off (limit {limit:.3g})")
        rough, median = self._worst(self._medians())
        limit = max(honest.limit(rough), self._least_of_element or 0.0)
        if not median <= limit:
            found.append(
                f"half the elements of {rough} are more than {median:.3g} of themselves off "
                f"(limit {limit:.3g})"
            )
        odd = self._oddest_step()[1]
        return [*found, odd] if odd is not None else found

    def parts(self) -> Iterator[PartFinding]:
        """Yield for each parameter the distance nearest to the limit, or furthest beyond."""
        lengths, medians = self._lengths(self._usual_steps), self._medians()
        odd = [*self._odd_steps()]
        for name in self._compared.names:
            limit = self._honest.limit(name)
            found = [("relative error of sampled gradients in all steps", lengths.get(name), limit)]
            least = max(limit, self._least_of_element or 0.0)
            found.append(("relative error of the median element", medians.get(name), least))
            found += [
                (f"relative error in step {step}", distance, most)
                for of, step, distance, most in odd
                if of == name
            ]
            told = [(what, value, most) for what, value, most in found if value is not None]
            if not told:
                continue
            what, value, most = max(told, key=lambda one: _ratio(one[1], one[2]))
            yield PartFinding(
                part=name,
                what=what,
                measured=f"{value:.3g}",
                honest=f"{limit / self._honest.times:.3g}",
                limit=f"{most:.3g}",
                kept=value <= most,
                badness=_ratio(value, most),
            )

    def measured(self) -> str:
        """Return the distances in words."""
        every = range(len(self.steps))
        by = self._honest.by_rounding
        largest, median = (
            self._worst(one, by)[1] for one in (self._lengths(every), self._medians())
        )
        shown = f"{self._what}{self._of_all(every):.3g} of all, worst {largest:.3g}, in one step "
        shown += f"{self._oddest_step()[0]:.3g}"
        left_out = len(every) - len(self._usual_steps)
        if left_out and self._is_beyond(every):
            usual = self._worst(self._lengths(self._usual_steps))[1]
            shown += f" (without the {left_out} steps furthest off {self.together()[0]:.3g} of all"
            shown += f", worst {usual:.3g})"
        if self._least_of_element is None:
            return shown
        return f"{shown}, element by element {median:.3g}"

    def together(self) -> tuple[float, float]:
        """Return the distance of all parameters without the steps furthest off, and the limit."""
        return self._of_all(self._usual_steps), self._honest.limit_of_all

    def _without_furthest(self) -> Sequence[int]:
        """Return the steps that count in totals, as indices into the replayed steps.

        A step further off than ``OF_A_STEP`` always counts, and a NaN counts too.
        """
        count = len(self.steps)
        errors = [self._of_all([step]) for step in range(count)]
        may = sorted((n for n in range(count) if errors[n] <= OF_A_STEP), key=errors.__getitem__)
        left_out = may[len(may) - min(len(may), int(LEFT_OUT * count)) :]
        return sorted({*range(count)} - {*left_out})

    def _is_beyond(self, steps: Sequence[int]) -> bool:
        """Tell whether totals of ``steps`` are beyond the limits."""
        worst, largest = self._worst(self._lengths(steps))
        within = self._of_all(steps) <= self._honest.limit_of_all
        return not (within and largest <= self._honest.limit(worst))

    def _of_all(self, steps: Sequence[int]) -> float:
        return total(own[step] for own in self._gaps.values() for step in steps).error

    def _lengths(self, steps: Sequence[int]) -> dict[str, float]:
        """Return the relative distance of each parameter in ``steps``, given enough samples."""
        return {
            name: total(self._gaps[name][step] for step in steps).error
            for name, elements in self._compared.told_in_all.items()
            if elements >= FEW and not name.endswith(UNSEEN)
        }

    def _worst(
        self, errors: Mapping[str, float], limit: Callable[[str], float] | None = None
    ) -> tuple[str, float]:
        """Return the parameter nearest to the limit or furthest beyond, with the error."""
        limit = limit or self._honest.limit
        most = max(errors, key=lambda n: _ratio(errors[n], limit(n)), default="")
        return most, errors.get(most, 0.0)

    def _medians(self) -> Mapping[str, float]:
        """Return for each parameter the median relative error of one element."""
        return self._compared.medians if self._least_of_element is not None else {}

    def _oddest_step(self) -> tuple[float, str | None]:
        """Return the largest distance in a single step, in usual lengths, and a fault if beyond."""
        largest, found = 0.0, None
        for name, step, distance, limit in self._odd_steps():
            if not distance <= limit and found is None:
                found = f"{self._of}{name} is {distance:.3g} of its length off in step {step}"
                found += f" (limit {limit:.3g})"
            largest = max(largest, distance)
        return largest, found

    def _odd_steps(self) -> Iterator[tuple[str, int, float, float]]:
        """Yield parameter, step, distance in usual lengths, and limit of the distance."""
        for name, own in self._gaps.items():
            usual = math.sqrt(sum(one.length**2 for one in own) / max(1, len(own)))
            if not usual or name.endswith(UNSEEN):
                continue
            distances = [one.distance / usual for one in own]
            limit = max(OF_A_STEP, USUAL * statistics.median(distances))
            for number, distance in enumerate(distances):
                if self._compared.told[name][number] >= FEW:
                    yield name, self.steps[number], distance, limit


def _ratio(value: float, limit: float) -> float:
    """Return ``value / limit``; where the limit is 0: 0 for no distance, otherwise infinity."""
    if math.isnan(value):
        return math.inf
    if limit == 0:
        return math.inf if value else 0.0
    return value / limit
