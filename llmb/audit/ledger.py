"""Rule L1: every step's gradients, or logits, are those of an honest run that has made it again."""

from __future__ import annotations

import hashlib
import math
import statistics
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmb.audit import equivalence, outputs
from llmb.audit.bench import HONEST, STEPS, Bench
from llmb.audit.compared_rows import FEW, ComparedRows, Rows, gaps_of_calls
from llmb.audit.distance import UNSEEN, Gap, gaps, total
from llmb.audit.precision import ways
from llmb.audit.rule import Evidence, PartFinding, Rule
from llmb.config import Mode, Precision
from llmb.formats import NARROW_BITS
from llmb.records import arrays, audited
from llmb.records.arrays import Array, Arrays
from llmb.records.audited import MOMENTS, LedgerEvidence, Moment
from llmb.records.finding import Finding, Level, Status

#: How far samples may be from the replay's, in honest errors of one step (rule E1): steps add
#: up what is different. Of all, and of each parameter.
_TIMES, _TIMES_OF_CALLS, _TIMES_IN_FP32 = 3.0, 4.0, 12.0
#: How much wider the limits are for the two steps that are recomputed: the samples of a parameter
#: are few there. In 155 runs the worst parameter was 2.8 honest errors off, all together 1.6.
_OF_TWO_STEPS = 1.5
#: How much wider the limits are for moments, in which the errors of steps add up. In 30 honest
#: runs all parameters together were at most 2.0 honest errors off, the worst parameter 2.5. One
#: matrix whose update was left out in one step of ten was 45 off.
OF_MOMENTS = 1.5
#: What gradients and moments may be off at least where gradients are clipped and ranks share a
#: model. Their norm is a sum of squares in FP32, in another order then. A processor gets it 0.63 %
#: too small of 67 million elements, and 0.22 % of two halves, so that ``exp_avg_sq`` is 0.8 % off.
#: Gradients of an honest FP32 run went a quarter as far apart as its moments in 20 steps.
CLIPPED, OF_CLIPPED = 5e-3, 2e-2
#: Share of a parameter's usual length that one step may be off: a stale gradient is 1.4 off. Of
#: narrow formats so many usual distances.
_OF_A_STEP, _USUAL = 0.4, 4.0
#: How far two honest trainings in BF16 drift apart, whatever the error of one step is: this times
#: the square root of the layers (32 at most), and a parameter so many times as far. Of 12 layers
#: honest trainings were 0.013 to 0.024 apart (a parameter: 0.029), of 24 layers 0.018 to 0.022.
#: Copies of the weights of v alone that are one step late were 0.049 to 0.067 (docs/adr/0058).
_DRIFT, _MOST_LAYERS, _DRIFT_OF_A_PART = 8.7e-3, 32, 1.5
#: Share of the steps that totals of gradients leave out, those furthest off: in some steps a sharp
#: softmax amplifies the roundings of all steps before. Of 66 steps of an honest run the three
#: furthest were 10 honest errors off, the others 2.5 together (docs/adr/0058).
LEFT_OUT = 0.05
#: The same of a single call, and of a single sequence in all calls: of so few logits the distance
#: varies, by 1.2 times where a call has 64.
_EACH = 2.0
#: What the median element of a parameter may be off at least, of itself: a last place of log(1/V),
#: which lies between 8 and 16 for 3,000 to 8.9 million words. All probabilities of a flat softmax
#: are off by half of that where the loss is computed in 16 bits: an honest head was 0.032 off.
_LAST_PLACE = {"bfloat16": 2.0**-4, "float32": 2.0**-20}

LEDGER = Evidence(audited.LEDGER, LedgerEvidence.model_validate_json)
VALUES = Evidence(audited.LEDGER_VALUES, arrays.read)
REPLAYED = Evidence(audited.REPLAYED, arrays.read)
RECOMPUTED = Evidence(audited.RECOMPUTED, arrays.read)
L1 = Rule(
    "L1",
    Level.BLOCK,
    "every step computes the gradients, or logits, that an honest run's step computes, and makes "
    "the optimizer's step",
    measured="64 elements of each gradient in each step, and 32 of a moment, in turn (modes "
    "forward and generate: 64 of each sequence's logits; of more than 128 parameters or sequences, "
    "fewer): their places are told once the step is made, their digest leaves the worker one step "
    "later; learning rates drawn from 1e-5 to 3e-4; an honest run replays the steps from the first "
    "weights; a process without the plugin computes two steps of training, drawn afterwards, in a "
    "wider format",
    limit="3 times the honest error of one step (moments: 4.5): together, for each parameter, for "
    "the median element of each gradient but biases (0.0625 at least in 16 bits; not in 8 bits); "
    "in no step 0.4 of a parameter's usual length. Totals of gradients are without the twentieth "
    "of the steps that is furthest off. In BF16 at least 0.0087 times the square root of the "
    "layers, 1.5 times that for each parameter (12 layers: 0.030 and 0.045). Calls: 4 times "
    "together, twice that for each call and each sequence, 0.4 of a sequence's usual length. FP32: "
    "12 times (moments: 18). Where ranks share a model and clip gradients 0.005 at least (moments: "
    "0.02)",
    cannot_see="training: steps after the replayed ones, or after the 80th; more than 8 ranks, "
    "ranks that share a model of more than 16 GB, dropout, FP16, formats of fewer than 8 bits, "
    "devices that record their steps (the plugin says so). Calls that were not drawn, where they "
    "are more than 80 or take longer than two minutes. Less than the format's own rounding. One "
    "step in twenty where no parameter is 0.4 of its length off: products in 4 bits there, 1.04 "
    "times the tokens/s. Gradients of queries and keys in GPT-2's fused weights, left out in steps "
    "and not in the last: 1.04 times",
    evidence=(LEDGER, VALUES, REPLAYED, RECOMPUTED, STEPS),
    any_evidence=True,
    since=3,
    causes=(
        "packed copies of weights that are refreshed every few steps, or once too late",
        "another kernel in the honest run than in the worker, because a variable or switch "
        "was set by hand",
    ),
)
RULES = (L1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield L1.

    Raises:
        ValueError: rows of another length than the segments have, or segments that are not those of
            the mode.
    """
    if bench.why_no_ledger is not None:
        told = f"no step can be replayed: {bench.why_no_ledger}"
        yield L1.unjudged(Status.NOT_APPLICABLE, told)
        return
    timing, drawn = bench.timing, bench.drawn
    paths = bench.paths(LEDGER, VALUES, REPLAYED, RECOMPUTED)
    ledger, values, replayed = bench.read(LEDGER), bench.read(VALUES), bench.read(REPLAYED)
    if drawn is None or ledger is None or values is None:
        yield L1.unjudged(Status.NOT_OBSERVED, "the worker left nothing of its steps")
        return
    rows, made = Rows(ledger, values[audited.ROWS]), len(timing.commitments)
    if bench.trains:
        compared: Sequence[int] = range(drawn.steps_compared(made))
        hidden = _hidden(bench, ledger)
    else:
        _check_sequences(rows.names, generates=bench.facts.workload.mode == Mode.GENERATE.value)
        compared, hidden = drawn.calls_compared(made), None
    broken = hidden or _broken(rows, {step: timing.commitments[step] for step in compared})
    if broken:
        yield L1.finding(Status.FAIL, broken, evidence=paths)
        return
    if replayed is None or bench.measured is None:
        yield L1.unjudged(Status.NOT_OBSERVED, "no honest run has replayed the steps", paths)
        return
    if bench.trains and (bench.reference is None or "live/loss" not in bench.reference):
        told = "there is no reference of a real step, and so no honest error"
        yield L1.unjudged(Status.NOT_OBSERVED, told, paths)
        return
    least = drawn.least_replayed(len(compared))
    if bench.trains:
        gradients = ComparedRows.read(replayed, audited.OF_GRADIENTS, rows.names)
        count = len(gradients.steps)
    else:
        calls = gaps_of_calls(replayed, rows.names, compared)
        count = len({call for call, _ in calls})
    if count < least:
        told = f"{count} steps were replayed, of {least} that had to be"
        yield L1.unjudged(Status.NOT_OBSERVED, told, paths)
        return
    if not bench.trains:
        honest = outputs.honest_error(bench)
        yield CallByCall(calls, honest, _times(bench)).finding(paths, made)
        return
    if count > len(rows):
        raise ValueError(f"{count} steps were replayed, of {len(rows)} that the worker shows")
    recomputed = bench.read(RECOMPUTED)
    checked = tuple(step for step in drawn.recomputed(len(compared)) if step < count)
    alone = ledger.model_copy(update={"moments": ()})
    right = Rows(alone, recomputed[audited.ROWS], checked) if recomputed is not None else None
    if right is None or len(right) not in (0, len(checked)):
        told = "no process without the plugin has computed the steps that were drawn for it"
        yield L1.unjudged(Status.NOT_OBSERVED, told, paths)
        return
    again = Rows(alone, replayed[audited.ROWS], checked)
    if len(again) != len(checked):
        raise ValueError(f"the honest run shows {len(again)} rows of {len(checked)} steps")
    error, of_element = _honest_error(bench), least_of_element(bench)
    own = error.drifting(drift_of(bench))
    wider = replace(own, times=OF_MOMENTS * error.times)
    if bench.facts.workload.clip_grad_norm is not None and bench.facts.parallelism.is_shared:
        own, wider = own.at_least(CLIPPED), wider.at_least(OF_CLIPPED)
    worker = StepByStep(gradients, own, of_element)
    turns = len(ledger.moments)
    moments = [
        StepByStep(ComparedRows.read(replayed, one, rows.names, turn, turns), wider, None, one)
        for turn, one in enumerate(ledger.moments)
    ]
    wider = replace(error, times=_OF_TWO_STEPS * error.times)
    of_few = None if of_element is None else _OF_TWO_STEPS * of_element
    yardstick = StepByStep(ComparedRows.of(again, right), wider, of_few)
    yield _of_training(
        [worker, *moments], yardstick, error, checked if len(right) else (), made, paths
    )


def parts(bench: Bench) -> Iterator[PartFinding]:
    """Yield what L1 says of each stored parameter, from the steps that an honest run replayed.

    Nothing where none was, or nothing was left of the worker's own.
    """
    ledger, values, replayed = bench.read(LEDGER), bench.read(VALUES), bench.read(REPLAYED)
    if ledger is None or values is None or replayed is None:
        return
    names = [segment.name for segment in ledger.segments]
    gradients = ComparedRows.read(replayed, audited.OF_GRADIENTS, names)
    honest = _honest_error(bench).drifting(drift_of(bench))
    yield from StepByStep(gradients, honest, least_of_element(bench)).parts()


def drift_of(bench: Bench) -> float:
    """Return the least limit of all gradients together in the run of ``bench``.

    0 in formats that are not stored in BF16: two honest FP32 trainings hardly drift apart.
    """
    if bench.facts.precision.dtype != "bfloat16":
        return 0.0
    return drift(bench.facts.workload.shapes.get("num_hidden_layers") or 0)


def drift(layers: float) -> float:
    """Return how far all gradients of two honest BF16 trainings may drift apart (docs/adr/0058).

    A relative distance. Example: 0.030 for 12 layers.
    """
    return _DRIFT * math.sqrt(min(layers, _MOST_LAYERS))


def least_of_element(bench: Bench) -> float | None:
    """Return what the median element of a parameter may be off at least; None: it is not judged."""
    # In 8 bits a small element of a gradient may be all rounding: its scale is that of a large one.
    precision = bench.facts.precision
    return _LAST_PLACE.get(precision.dtype) if precision.bits > NARROW_BITS else None


def _of_training(
    worker: Sequence[StepByStep],
    yardstick: StepByStep,
    honest: HonestError,
    checked: Sequence[int],
    made: int,
    evidence: tuple[str, ...],
) -> Finding:
    """Return L1 of a worker that has ``made`` so many steps.

    ``worker`` has the distances of gradients, then of each moment, from the honest run;
    ``yardstick`` has the distances of the honest run from the reference in the steps ``checked``.
    """
    faults = [fault for one in worker for fault in one.faults()]
    shown = "; ".join(one.measured() for one in worker)
    what = "gradients and moments" if len(worker) > 1 else "gradients"
    good = (
        f"{len(worker[0].steps)} of {made} steps replayed: the {what} of each are as near to the "
    )
    good += "honest run's as honest ones are"
    if checked:
        shown += f"; the honest run's own {yardstick.measured()}"
        numbers = " and ".join(map(str, checked))
        prefix = f"the honest run's own, in steps {numbers} without the plugin: "
        faults += [prefix + fault for fault in yardstick.faults()[:1]]
    else:
        good += "; none was computed without the plugin, which the device needs"
    return L1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults) if faults else good,
        measured=shown,
        honest=f"{honest.of_all:.3g} of all, {honest.usual:.3g} in the median",
        limit=f"{honest.times:g} times honest (moments: {OF_MOMENTS * honest.times:g}), "
        f"{_OF_A_STEP:g} in one step",
        basis="calibrated",
        observer="worker, honest run, verifier",
        evidence=evidence,
    )


def _hidden(bench: Bench, ledger: LedgerEvidence) -> str | None:
    """Return a sentence where rows leave out a moment, or a parameter that an audited step had."""
    if ledger.moments != MOMENTS[: bench.facts.workload.optimizer.moments]:
        return "the rows of the steps do not show the moments of the optimizer"
    steps, most = bench.read(STEPS), max(segment.elements for segment in ledger.segments)
    shown = {segment.name: segment.elements for segment in ledger.segments}
    for step in steps.steps if steps is not None else ():
        due = {segment.name: min(most, segment.gradients) for segment in step.segments}
        due |= dict.fromkeys(step.without_gradient, 1)
        for name, elements in due.items():
            if shown.get(name, 0) < elements:
                found = f"the rows of the steps show {shown.get(name, 0)} elements of {name}, "
                return found + f"and step {step.index} had {elements}"
    return None


def _check_sequences(names: Sequence[str], *, generates: bool) -> None:
    """Hold ``names`` to those of all sequences, and the tokens where some are drawn.

    Raises:
        ValueError: they are others, so that something would not be compared.
    """
    tokens = [audited.TOKENS] * generates
    sequences = [f"sequence {number}" for number in range(len(names) - len(tokens))]
    if not sequences or [*names] != [*sequences, *tokens]:
        raise ValueError("the rows of the ledger are not those of sequences")


def _broken(rows: Rows, commitments: Mapping[int, str]) -> str | None:
    """Return a sentence where the rows are not those of the steps in ``commitments``, by number."""
    if len(rows) != len(commitments):
        return f"{len(rows)} steps are shown, {len(commitments)} were committed to"
    for number, (step, commitment) in enumerate(commitments.items()):
        if _digest(rows.row(number)) != commitment:
            return f"what is shown of step {step} is not what was committed to"
    return None


def _digest(row: Array) -> str:
    """Return the sha256 over a row as float32, the least significant byte first."""
    return hashlib.sha256(struct.pack(f"<{len(row)}f", *row)).hexdigest()


@dataclass(frozen=True)
class HonestError:
    """Relative errors of an honest run in a real step, beside the reference (rule E1)."""

    of_all: float
    #: By canonical name; another parameter has the median.
    of_parts: Mapping[str, float]
    times: float
    #: What may be off at least: all together, and a parameter.
    least_of_all: float = 0.0
    least_of_part: float = 0.0

    @property
    def usual(self) -> float:
        """The median of all parameters."""
        return statistics.median(self.of_parts.values()) if self.of_parts else 0.0

    def at_least(self, limit: float) -> HonestError:
        """Return the same with limits of ``limit`` at least."""
        return replace(
            self,
            least_of_all=max(limit, self.least_of_all),
            least_of_part=max(limit, self.least_of_part),
        )

    def drifting(self, apart: float) -> HonestError:
        """Return the same where honest trainings may be ``apart``, and a parameter 1.5 times so."""
        return replace(self, least_of_all=apart, least_of_part=_DRIFT_OF_A_PART * apart)

    def at_most(self, limit: float) -> HonestError:
        """Return the same with no limit beyond ``limit``."""
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
        """How far the samples of all parameters together may be off."""
        return max(self.least_of_all, self.times * self.of_all)

    def limit(self, name: str) -> float:
        """Return how far the samples of a parameter may be off."""
        return max(self.least_of_part, self.by_rounding(name))

    def by_rounding(self, name: str) -> float:
        """Return how far the samples of a parameter may be off by the error of one step alone."""
        return self.times * max(self.usual, self.of_parts.get(name, 0.0))


def _honest_error(bench: Bench) -> HonestError:
    """Return the error of the rougher honest run, and no smaller one than two kernels have."""
    honest, reference = bench.needed(HONEST), bench.reference
    precision = bench.facts.precision
    assert reference is not None  # the yardstick of E1, without which nothing was measured
    return honest_error(ways(honest, precision.name), reference, precision)


def honest_error(
    honest: Sequence[Arrays], reference: Arrays, precision: Precision, *, trains: bool = True
) -> HonestError:
    """Return the error of the rougher of ``honest`` runs, and no smaller one than kernels have."""
    runs = [gaps(way, reference, "live/") for way in honest]
    least = equivalence.least_error(precision)
    return HonestError(
        of_all=max([least, *(total(run.values()).error for run in runs)]),
        of_parts={name: max([least, *(run[name].error for run in runs)]) for name in runs[0]},
        times=times_of(precision, trains=trains),
    )


def _times(bench: Bench) -> float:
    return times_of(bench.facts.precision, trains=bench.trains)


def times_of(precision: Precision, *, trains: bool = True) -> float:
    """Return how many honest errors samples may be off."""
    if precision.dtype == "float32":
        return _TIMES_IN_FP32
    return _TIMES if trains else _TIMES_OF_CALLS


class StepByStep:
    """The distances of what was read from what the honest run read, by step and parameter."""

    def __init__(
        self,
        compared: ComparedRows,
        honest: HonestError,
        least_of_element: float | None,
        moment: Moment | None = None,
    ) -> None:
        """Judge the steps that were replayed.

        ``least_of_element``: what the median element may be off at least, relative to itself; None
        where an honest run gets only the large elements right. ``moment``: what was read, if it was
        no gradient.
        """
        self._what, self._of = (f"{moment} ", f"{moment} of ") if moment else ("", "")
        self._together = moment or "all gradients"
        self.steps, self._honest, self._compared = compared.steps, honest, compared
        self._gaps = compared.gaps
        self._usual_steps = range(len(self.steps)) if moment else self._without_furthest()
        self._least_of_element = least_of_element

    def faults(self) -> list[str]:
        """Return a sentence for each way in which what was read is too far off."""
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
        """Yield of each parameter the distance that is nearest to its limit, or furthest beyond."""
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
        """Return how far all are off together but in the steps furthest off, and the limit."""
        return self._of_all(self._usual_steps), self._honest.limit_of_all

    def _without_furthest(self) -> Sequence[int]:
        """Return which steps count in totals, by their place among those that were replayed.

        A step that is further off than ``_OF_A_STEP`` always counts, and so does a NaN.
        """
        count = len(self.steps)
        errors = [self._of_all([step]) for step in range(count)]
        may = sorted((n for n in range(count) if errors[n] <= _OF_A_STEP), key=errors.__getitem__)
        left_out = may[len(may) - min(len(may), int(LEFT_OUT * count)) :]
        return sorted({*range(count)} - {*left_out})

    def _is_beyond(self, steps: Sequence[int]) -> bool:
        """Tell whether totals of ``steps`` are beyond their limits."""
        worst, largest = self._worst(self._lengths(steps))
        within = self._of_all(steps) <= self._honest.limit_of_all
        return not (within and largest <= self._honest.limit(worst))

    def _of_all(self, steps: Sequence[int]) -> float:
        return total(own[step] for own in self._gaps.values() for step in steps).error

    def _lengths(self, steps: Sequence[int]) -> dict[str, float]:
        """Return the relative distance of each parameter in ``steps``, where it tells something."""
        return {
            name: total(self._gaps[name][step] for step in steps).error
            for name, elements in self._compared.told_in_all.items()
            if elements >= FEW and not name.endswith(UNSEEN)
        }

    def _worst(
        self, errors: Mapping[str, float], limit: Callable[[str], float] | None = None
    ) -> tuple[str, float]:
        """Return the parameter that is nearest to its limit or furthest beyond, and its error."""
        limit = limit or self._honest.limit
        most = max(errors, key=lambda n: _ratio(errors[n], limit(n)), default="")
        return most, errors.get(most, 0.0)

    def _medians(self) -> Mapping[str, float]:
        """Return of each parameter the median error of one element, relative to that element."""
        return self._compared.medians if self._least_of_element is not None else {}

    def _oddest_step(self) -> tuple[float, str | None]:
        """Return the largest distance in a single step, in usual lengths, and what is wrong."""
        largest, found = 0.0, None
        for name, step, distance, limit in self._odd_steps():
            if not distance <= limit and found is None:
                found = f"{self._of}{name} is {distance:.3g} of its length off in step {step}"
                found += f" (limit {limit:.3g})"
            largest = max(largest, distance)
        return largest, found

    def _odd_steps(self) -> Iterator[tuple[str, int, float, float]]:
        """Yield parameter, step, the distance in usual lengths, and the limit of that."""
        for name, own in self._gaps.items():
            usual = math.sqrt(sum(one.length**2 for one in own) / max(1, len(own)))
            if not usual or name.endswith(UNSEEN):
                continue
            distances = [one.distance / usual for one in own]
            limit = max(_OF_A_STEP, _USUAL * statistics.median(distances))
            for number, distance in enumerate(distances):
                if self._compared.told[name][number] >= FEW:
                    yield name, self.steps[number], distance, limit


class CallByCall:
    """The distances of the logits that were read from the honest run's, by call and sequence."""

    def __init__(
        self, compared: Mapping[tuple[int, str], Gap], honest: float, times: float
    ) -> None:
        """Judge what was ``compared``, by number of the call and name of the sequence.

        ``honest`` is the relative error of an honest run's logits, ``times`` which may be off.
        """
        self._honest, self._times, self._gaps = honest, times, compared
        self._count = len({call for call, _ in compared})

    def together(self) -> tuple[float, float]:
        """Return how far all logits are off together, and the limit of that."""
        return total(self._gaps.values()).error, self._times * self._honest

    def finding(self, evidence: tuple[str, ...], made: int) -> Finding:
        """Return L1 of a worker that has made so many calls."""
        every, limit = self.together()
        by_call = _joined((f"call {call}", one) for (call, _), one in self._gaps.items())
        by_sequence = _joined((name, one) for (_, name), one in self._gaps.items())
        faults = []
        if not every <= limit:  # a NaN must not pass
            faults.append(f"all logits together are {every:.3g} off (limit {limit:.3g})")
        worst = dict(max(errors.items(), key=_by_error) for errors in (by_call, by_sequence))
        faults += [
            f"the logits of {name} are {error:.3g} off (limit {_EACH * limit:.3g})"
            for name, error in worst.items()
            if not error <= _EACH * limit
        ]
        largest, odd = self._oddest()
        faults += odd
        share = f"{self._count} of {made} calls replayed"
        good = f"{share}: the logits of each sequence are as near to the honest run's as honest are"
        call, sequence = worst.values()
        return L1.finding(
            Status.FAIL if faults else Status.PASS,
            "; ".join(faults) if faults else good,
            measured=f"{every:.3g} of all, worst call {call:.3g}, worst sequence {sequence:.3g}, "
            f"in one call {largest:.3g}",
            honest=f"{self._honest:.3g}",
            limit=f"{self._times:g} times honest, {_EACH * self._times:g} for each call and "
            f"sequence, {_OF_A_STEP:g} for one in one call",
            basis="calibrated",
            observer="worker, honest run",
            evidence=evidence,
        )

    def _oddest(self) -> tuple[float, list[str]]:
        """Return the largest distance of one sequence in one call, in usual lengths; if too far."""
        usual = total(self._gaps.values()).length / math.sqrt(len(self._gaps)) or 1.0
        distances = {where: one.distance / usual for where, one in self._gaps.items()}
        limit = max(_OF_A_STEP, _USUAL * statistics.median(distances.values()))
        (call, name), largest = max(distances.items(), key=_by_error)
        if largest <= limit:
            return largest, []
        return largest, [
            f"the logits of {name} are {largest:.3g} of their length off in call {call} "
            f"(limit {limit:.3g})"
        ]


def _joined(gaps_of: Iterable[tuple[str, Gap]]) -> dict[str, float]:
    """Return the error of all gaps together that have one name."""
    by_name: dict[str, list[Gap]] = {}
    for name, one in gaps_of:
        by_name.setdefault(name, []).append(one)
    return {name: total(every).error for name, every in by_name.items()}


def _by_error(named: tuple[object, float]) -> float:
    return math.inf if math.isnan(named[1]) else named[1]


def _ratio(value: float, limit: float) -> float:
    """Return the share of ``limit``; 0 of nothing where the limit is 0, as of what is not there."""
    if math.isnan(value):
        return math.inf
    if limit == 0:
        return math.inf if value else 0.0
    return value / limit
