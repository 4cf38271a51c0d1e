"""Rule L1: the gradients of every step are those of an honest run that has made the same steps."""

from __future__ import annotations

import hashlib
import math
import statistics
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llmb.audit import equivalence
from llmb.audit.bench import HONEST, STEPS, Bench
from llmb.audit.distance import UNSEEN, gap, gaps, total
from llmb.audit.precision import ways
from llmb.audit.rule import TRAINING, Evidence, Rule
from llmb.formats import NARROW_BITS
from llmb.records import arrays, audited
from llmb.records.arrays import Array
from llmb.records.audited import LedgerEvidence
from llmb.records.finding import Finding, Level, Status

#: How far samples may be from the replay's, in honest errors of one step (rule E1): steps add
#: up what is different. Of all, and of each parameter.
_TIMES, _TIMES_IN_FP32 = 3.0, 12.0
#: Share of a parameter's usual length that one step may be off: a stale gradient is 1.4 off. Of
#: narrow formats so many usual distances.
_OF_A_STEP, _USUAL = 0.4, 4.0
#: A sample whose length lies in fewer elements tells too little by itself (rule E1).
_FEW = 16

LEDGER = Evidence(audited.LEDGER, LedgerEvidence.model_validate_json)
VALUES = Evidence(audited.LEDGER_VALUES, arrays.read)
REPLAYED = Evidence(audited.REPLAYED, arrays.read)
RECOMPUTED = Evidence(audited.RECOMPUTED, arrays.read)
L1 = Rule(
    "L1",
    Level.BLOCK,
    "every step computes the gradients that an honest run's step computes",
    measured="64 elements of each gradient in each step: their places are told once the gradients "
    "are there, their digest leaves the worker one step later; learning rates drawn from 1e-5 to "
    "1e-3; an honest run replays the steps from the first weights; a process without the plugin "
    "computes two of them, drawn afterwards, in a wider format",
    limit="3 times the honest error of one step: together, for each parameter, and for the median "
    "element of each (not in 8 bits); FP32: 12 times; in no step 0.4 of a parameter's usual length",
    cannot_see="steps after the replayed ones, or after the 80th; several ranks, dropout, FP16, "
    "formats of fewer than 8 bits, devices that record their steps (the plugin says so); less than "
    "the format's own rounding",
    evidence=(LEDGER, VALUES, REPLAYED, RECOMPUTED, STEPS),
    any_evidence=True,
    modes=TRAINING,
    since=3,
)
RULES = (L1,)


def judge(bench: Bench) -> Iterator[Finding]:
    """Yield L1.

    Raises:
        ValueError: rows of another length than the segments have.
    """
    if bench.why_no_ledger is not None:
        told = f"no step can be replayed: {bench.why_no_ledger}"
        yield L1.unjudged(Status.NOT_APPLICABLE, told)
        return
    timing, drawn = bench.timing, bench.drawn
    paths = bench.paths(LEDGER, VALUES, REPLAYED, RECOMPUTED)
    ledger, values, replayed = bench.read(LEDGER), bench.read(VALUES), bench.read(REPLAYED)
    if drawn is None or ledger is None or values is None:
        yield L1.unjudged(Status.NOT_OBSERVED, "the worker left no gradients of its steps")
        return
    rows = Rows(ledger, values[audited.ROWS])
    steps = drawn.steps_compared(len(timing.commitments))
    broken = _broken(rows, timing.commitments[:steps])
    if broken:
        yield L1.finding(Status.FAIL, broken, evidence=paths)
        return
    if replayed is None or bench.measured is None:
        yield L1.unjudged(Status.NOT_OBSERVED, "no honest run has replayed the steps", paths)
        return
    again = Rows(ledger, replayed[audited.ROWS])
    least = drawn.least_replayed(steps)
    if len(again) < least:
        told = f"{len(again)} steps were replayed, of {least} that had to be"
        yield L1.unjudged(Status.NOT_OBSERVED, told, paths)
        return
    recomputed = bench.read(RECOMPUTED)
    checked = tuple(step for step in drawn.recomputed(steps) if step < len(again))
    right = Rows(ledger, recomputed[audited.ROWS]) if recomputed is not None else None
    if right is None or len(right) not in (0, len(checked)):
        told = "no process without the plugin has computed the steps that were drawn for it"
        yield L1.unjudged(Status.NOT_OBSERVED, told, paths)
        return
    # In 8 bits a small element of a gradient may be all rounding: its scale is that of a large one.
    honest, wide = _honest_error(bench), bench.facts.precision.bits > NARROW_BITS
    worker = StepByStep(rows, again, honest, each_element=wide)
    faults, shown = worker.faults(), worker.measured()
    good = (
        f"{len(again)} of {len(timing.commitments)} steps replayed: the gradients of each are as "
    )
    good += "near to the honest run's as honest ones are"
    if len(right):
        yardstick = StepByStep(again.only(checked), right, honest, each_element=wide)
        shown += f"; the honest run's own {yardstick.measured()}"
        numbers = " and ".join(map(str, checked))
        prefix = f"the honest run's own, in steps {numbers} without the plugin: "
        faults += [prefix + fault for fault in yardstick.faults()[:1]]
    else:
        good += "; none was computed without the plugin, which the device needs"
    yield L1.finding(
        Status.FAIL if faults else Status.PASS,
        "; ".join(faults) if faults else good,
        measured=shown,
        honest=f"{honest.of_all:.3g} of all, {honest.usual:.3g} in the median",
        limit=f"{honest.times:g} times honest, {_OF_A_STEP:g} in one step",
        basis="calibrated",
        observer="worker, honest run, verifier",
        evidence=paths,
    )


class Rows:
    """What was read of the gradients: a row a step, a part of it for each stored parameter."""

    def __init__(self, ledger: LedgerEvidence, values: Array) -> None:
        """Take ``values``, row after row.

        Raises:
            ValueError: they are no whole number of rows.
        """
        self._ledger = ledger
        self.names = [segment.name for segment in ledger.segments]
        self._counts = [segment.elements for segment in ledger.segments]
        self._length, self._values = sum(self._counts), values
        if not self._length or len(values) % self._length:
            raise ValueError(f"{len(values)} gradients are no rows of {self._length}")

    def __len__(self) -> int:
        """Return how many steps there are."""
        return len(self._values) // self._length

    def only(self, steps: Sequence[int]) -> Rows:
        """Return the rows of ``steps`` alone."""
        return Rows(self._ledger, [value for step in steps for value in self.row(step)])

    def row(self, step: int) -> Array:
        """Return what was read in ``step``."""
        return self._values[step * self._length : (step + 1) * self._length]

    def parts(self, step: int) -> Iterator[tuple[str, Array]]:
        """Yield each parameter's name and its elements in ``step``."""
        row, first = self.row(step), 0
        for name, count in zip(self.names, self._counts, strict=True):
            yield name, row[first : first + count]
            first += count


def _broken(rows: Rows, commitments: Sequence[str]) -> str | None:
    """Return a sentence where the rows are not those that the worker committed to."""
    if len(rows) != len(commitments):
        return f"gradients of {len(rows)} steps are shown, {len(commitments)} were committed to"
    for step, commitment in enumerate(commitments):
        if _digest(rows.row(step)) != commitment:
            return f"the gradients of step {step} are not those that were committed to"
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

    @property
    def usual(self) -> float:
        """The median of all parameters."""
        return statistics.median(self.of_parts.values()) if self.of_parts else 0.0

    def limit(self, name: str) -> float:
        """Return how far the samples of a parameter may be off."""
        return self.times * max(self.usual, self.of_parts.get(name, 0.0))


def _honest_error(bench: Bench) -> HonestError:
    """Return the error of the rougher honest run, and no smaller one than two kernels have."""
    honest, reference = bench.needed(HONEST), bench.reference
    precision = bench.facts.precision
    assert reference is not None  # the yardstick of E1, without which nothing was measured
    runs = [gaps(way, reference, "live/") for way in ways(honest, precision.name)]
    least = equivalence.least_error(precision)
    return HonestError(
        of_all=max([least, *(total(run.values()).error for run in runs)]),
        of_parts={name: max([least, *(run[name].error for run in runs)]) for name in runs[0]},
        times=_TIMES_IN_FP32 if precision.dtype == "float32" else _TIMES,
    )


class StepByStep:
    """The distances of what was read from what the honest run read, by step and parameter."""

    def __init__(self, rows: Rows, again: Rows, honest: HonestError, *, each_element: bool) -> None:
        """Compare the first steps, as many as were replayed.

        ``each_element``: an honest run gets most elements right by themselves, and not only the
        large ones.
        """
        self._honest = honest
        #: Of each parameter, step by step: what the worker and the honest run read.
        self._pairs: dict[str, list[tuple[Array, Array]]] = {name: [] for name in rows.names}
        for step in range(min(len(again), len(rows))):
            pairs = zip(rows.parts(step), again.parts(step), strict=True)
            for (name, shown), (_, right) in pairs:
                self._pairs[name].append((shown, right))
        self._gaps = {n: [gap(*pair) for pair in pairs] for n, pairs in self._pairs.items()}
        self._each_element = each_element

    def faults(self) -> list[str]:
        """Return a sentence for each way in which what was read is too far off."""
        honest, found = self._honest, list[str]()
        of_all, limit = self._of_all(), honest.times * honest.of_all
        if not of_all <= limit:  # a NaN must not pass
            found.append(f"all gradients together are {of_all:.3g} off (limit {limit:.3g})")
        worst, largest = self._worst(self._lengths())
        if not largest <= honest.limit(worst):
            found.append(f"{worst} is {largest:.3g} off (limit {honest.limit(worst):.3g})")
        rough, median = self._worst(self._medians())
        if not median <= honest.limit(rough):
            found.append(
                f"half the elements of {rough} are more than {median:.3g} of themselves off "
                f"(limit {honest.limit(rough):.3g})"
            )
        odd = self._oddest_step()[1]
        return [*found, odd] if odd is not None else found

    def measured(self) -> str:
        """Return the distances in words."""
        largest, median = (self._worst(one)[1] for one in (self._lengths(), self._medians()))
        return (
            f"{self._of_all():.3g} of all, worst {largest:.3g}, in one step "
            f"{self._oddest_step()[0]:.3g}, element by element {median:.3g}"
        )

    def _of_all(self) -> float:
        return total(one for own in self._gaps.values() for one in own).error

    def _lengths(self) -> dict[str, float]:
        """Return the relative distance of each parameter, of those that tell something."""
        return {
            name: total(self._gaps[name]).error
            for name, pairs in self._pairs.items()
            if _tells([value for _, right in pairs for value in right])
        }

    def _worst(self, errors: Mapping[str, float]) -> tuple[str, float]:
        """Return the parameter that is nearest to its limit or furthest beyond, and its error."""
        most = max(errors, key=lambda n: _ratio(errors[n], self._honest.limit(n)), default="")
        return most, errors.get(most, 0.0)

    def _medians(self) -> dict[str, float]:
        """Return of each parameter the median error of one element, relative to that element.

        The length of a head's gradient lies in the few words that come next. All other words have
        small elements, which a softmax that is only guessed gets wrong. Elements that are zero in
        both runs are left out, such as those of words that do not occur.
        """
        if not self._each_element:
            return {}
        found = {}
        for name, pairs in self._pairs.items():
            both = [(a, b) for shown, right in pairs for a, b in zip(shown, right, strict=True)]
            errors = [abs(a - b) / abs(b) if b else math.inf for a, b in both if a or b]
            if len(errors) >= _FEW and not name.endswith(UNSEEN):
                found[name] = _median(errors)
        return found

    def _oddest_step(self) -> tuple[float, str | None]:
        """Return the largest distance in a single step, in usual lengths, and what is wrong."""
        largest, found = 0.0, None
        for name, own in self._gaps.items():
            usual = math.sqrt(sum(one.length**2 for one in own) / max(1, len(own)))
            if not usual:
                continue
            distances = [one.distance / usual for one in own]
            limit = max(_OF_A_STEP, _USUAL * statistics.median(distances))
            for step, distance in enumerate(distances):
                if not _tells(self._pairs[name][step][1]):
                    continue
                if not distance <= limit and found is None:
                    found = f"{name} is {distance:.3g} of its length off in step {step}"
                    found += f" (limit {limit:.3g})"
                largest = max(largest, distance)
        return largest, found


def _median(errors: Sequence[float]) -> float:
    """Return the median, NaN where one is no number."""
    return math.nan if any(map(math.isnan, errors)) else statistics.median(errors)


def _tells(right: Array) -> bool:
    """Tell whether a sample has its length in enough elements to be judged by itself."""
    return equivalence.effective(right) >= _FEW


def _ratio(value: float, limit: float) -> float:
    return math.inf if math.isnan(value) else value / limit
