"""Rule L1, training: distance of each step of a worker from the same step of an honest run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from llmb.audit.compared_rows import ComparedRows
from llmb.audit.distance import UNSEEN, is_rounding, ratio, total
from llmb.audit.equivalence import FEW
from llmb.audit.honest_error import HonestError
from llmb.audit.rule import PartFinding
from llmb.records.audited import Moment

#: Share of a parameter's usual length that one step may be off: a stale gradient is 1.4 off. In
#: narrow formats the limit is this many usual distances, if larger.
OF_A_STEP, USUAL = 0.4, 4.0
#: Share of the steps left out of totals of gradients, the steps furthest off: in some steps a sharp
#: softmax amplifies the roundings of all earlier steps. Of 66 steps of an honest run the three
#: furthest were 10 honest errors off, the others 2.5 together (docs/adr/0058). Each parameter
#: leaves out its own steps: in one step of an honest run a single element of the head was 0.34 of
#: itself off, and the head of all 26 steps 0.13 (docs/adr/0072).
LEFT_OUT = 0.05
#: A total with most of the length in fewer elements than this is no more exact than one element.
FEW_IN_ALL = 64


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

        ``least_of_element``: lower bound of the limit of one element, relative to the element: of
        the median element of gradients, and of totals of few elements. None where an honest run
        gets only the large elements right. ``moment``: the sampled moment, such as ``exp_avg``;
        None for gradients.
        """
        self._what, self._of = (f"{moment} ", f"{moment} of ") if moment else ("", "")
        self._together = moment or "all gradients"
        self.steps, self._honest, self._compared = compared.steps, honest, compared
        self._gaps = compared.gaps
        self._left_out = 0 if moment else int(LEFT_OUT * len(self.steps))
        self._usual_steps = self._without_furthest()
        self._least_of_element = least_of_element
        #: Elements of moments are not judged one by one: errors of all steps before add up in them.
        self._judges_elements = least_of_element is not None and moment is None

    def faults(self) -> list[str]:
        """Return a sentence for each distance beyond a limit."""
        found = list[str]()
        of_all, limit = self.together()
        lengths = self.lengths()
        if not of_all <= limit:  # a NaN must not pass
            found.append(f"{self._together} together are {of_all:.3g} off (limit {limit:.3g})")
            found[0] += f", furthest {self._worst(lengths)[0]}"
        worst, largest = self._worst(lengths)
        if not largest <= self.limit(worst):
            limit = self.limit(worst)
            found.append(f"{self._of}{worst} is {largest:.3g} off (limit {limit:.3g})")
        rough, median = self._worst(self._medians(), self._limit_of_element)
        if not median <= self._limit_of_element(rough):
            limit = self._limit_of_element(rough)
            found.append(
                f"half the elements of {rough} are more than {median:.3g} of themselves off "
                f"(limit {limit:.3g})"
            )
        odd = self._oddest_step()[1]
        return [*found, odd] if odd is not None else found

    def parts(self) -> Iterator[PartFinding]:
        """Yield for each parameter the distance nearest to the limit, or furthest beyond."""
        lengths, medians = self.lengths(), self._medians()
        odd = [*self._odd_steps()]
        for name in self._compared.names:
            of_all_steps = "relative error of sampled gradients in all steps"
            of_median = "relative error of the median element"
            found = [
                (of_all_steps, lengths.get(name), self.limit(name)),
                (of_median, medians.get(name), self._limit_of_element(name)),
            ]
            found += [
                (f"relative error in step {step}", distance, most)
                for of, step, distance, most in odd
                if of == name
            ]
            told = [(what, value, most) for what, value, most in found if value is not None]
            if not told:
                continue
            what, value, most = max(told, key=lambda one: ratio(one[1], one[2]))
            yield PartFinding(
                part=name,
                what=what,
                measured=f"{value:.3g}",
                honest=f"{self._honest.limit(name) / self._honest.times:.3g}",
                limit=f"{most:.3g}",
                kept=value <= most,
                badness=ratio(value, most),
            )

    def measured(self) -> str:
        """Return the distances in words."""
        every = range(len(self.steps))
        by = self._honest.by_rounding
        largest, median = (
            self._worst(one, by)[1]
            for one in (self._lengths_of(dict.fromkeys(self._gaps, every)), self._medians())
        )
        shown = f"{self._what}{self._of_all(every):.3g} of all, worst {largest:.3g}, in one step "
        shown += f"{self._oddest_step()[0]:.3g}"
        if self._left_out and self._is_beyond(every):
            usual = self._worst(self.lengths())[1]
            shown += (
                f" (without the {self._left_out} step{'s' * (self._left_out > 1)} furthest off "
            )
            shown += f"{self.together()[0]:.3g} of all, worst {usual:.3g})"
        if not self._judges_elements:
            return shown
        return f"{shown}, element by element {median:.3g}"

    def together(self) -> tuple[float, float]:
        """Return the distance of all parameters without the steps furthest off, and the limit."""
        return self._of_all(self._usual_steps), self._honest.limit_of_all

    def lengths(self) -> dict[str, float]:
        """Return the relative distance of each parameter, without its steps furthest off."""
        return self._lengths_of({name: self._without_furthest_of(name) for name in self._gaps})

    def limit(self, name: str) -> float:
        """Return the largest allowed distance of a parameter in all steps together.

        Few elements that hold most of the length are no more exact together than one element is.
        """
        if self._compared.told_in_all.get(name, math.inf) < FEW_IN_ALL:
            return self._limit_of_element(name)
        return self._honest.limit(name)

    def _limit_of_element(self, name: str) -> float:
        """Return the largest allowed relative error of one element of a parameter."""
        return max(self._honest.limit(name), self._least_of_element or 0.0)

    def _without_furthest(self) -> Sequence[int]:
        """Return the steps that count in the total of all parameters."""
        errors = [self._of_all([step]) for step in range(len(self.steps))]
        return self._without(errors, [error <= OF_A_STEP for error in errors])

    def _without_furthest_of(self, name: str) -> Sequence[int]:
        """Return the steps that count in the total of the parameter ``name``."""
        distances = [one.distance for one in self._gaps[name]]
        most, told = OF_A_STEP * self._usual_length(name), self._compared.told[name]
        may = [off <= most or elements < FEW for off, elements in zip(distances, told, strict=True)]
        return self._without(distances, may)

    def _usual_length(self, name: str) -> float:
        """Return the root of the mean square of a parameter's lengths over the steps."""
        own = self._gaps[name]
        return math.sqrt(sum(one.length**2 for one in own) / max(1, len(own)))

    def _without(self, errors: Sequence[float], may: Sequence[bool]) -> Sequence[int]:
        """Return all steps but the ones with the largest ``errors``, as indices.

        Only steps that ``may`` are left out. A step with a NaN always counts.
        """
        every = range(len(errors))
        among = [step for step in every if may[step] and not math.isnan(errors[step])]
        furthest = sorted(among, key=errors.__getitem__, reverse=True)[: self._left_out]
        return sorted({*every} - {*furthest})

    def _is_beyond(self, steps: Sequence[int]) -> bool:
        """Tell whether totals of ``steps`` are beyond the limits."""
        worst, largest = self._worst(self._lengths_of(dict.fromkeys(self._gaps, steps)))
        within = self._of_all(steps) <= self._honest.limit_of_all
        return not (within and largest <= self.limit(worst))

    def _of_all(self, steps: Sequence[int]) -> float:
        return total(own[step] for own in self._gaps.values() for step in steps).error

    def _lengths_of(self, steps: Mapping[str, Sequence[int]]) -> dict[str, float]:
        """Return the relative distance of each parameter in its ``steps``, given enough samples."""
        return {
            name: total(self._gaps[name][step] for step in steps[name]).error
            for name, elements in self._compared.told_in_all.items()
            if elements >= FEW and not name.endswith(UNSEEN)
        }

    def _worst(
        self, errors: Mapping[str, float], limit: Callable[[str], float] | None = None
    ) -> tuple[str, float]:
        """Return the parameter nearest to the limit or furthest beyond, with the error."""
        limit = limit or self.limit
        most = max(errors, key=lambda n: ratio(errors[n], limit(n)), default="")
        return most, errors.get(most, 0.0)

    def _medians(self) -> Mapping[str, float]:
        """Return for each parameter the median relative error of one element."""
        if not self._judges_elements:
            return {}
        parts = {name: total(own) for name, own in self._gaps.items()}
        whole = total(parts.values())
        most = self._honest.limit_of_all
        return {
            name: median
            for name, median in self._compared.medians.items()
            if not is_rounding(parts[name], whole, most)
        }

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
            usual = self._usual_length(name)
            if not usual or name.endswith(UNSEEN):
                continue
            distances = [one.distance / usual for one in own]
            limit = max(OF_A_STEP, USUAL * statistics.median(distances))
            for number, distance in enumerate(distances):
                if self._compared.told[name][number] >= FEW:
                    yield name, self.steps[number], distance, limit
