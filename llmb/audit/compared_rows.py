"""Distances of a worker's rows from the rows of an honest run, as rule L1 judges them.

Rows of an honest run are as large as the worker's rows, and only the distances between both count.
The supervisor takes the distances when both processes have ended. The rows are not kept
(docs/adr/0057).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from llmb.audit.distance import UNSEEN, Gap, effective, gap
from llmb.audit.equivalence import FEW
from llmb.records import arrays, audited
from llmb.records.arrays import Array, Arrays, StoredArray
from llmb.records.audited import LedgerEvidence, LedgerSegment, Moment, half_of

#: Weights of queries, keys and values in one tensor (GPT-2). Gradients of queries and keys are far
#: smaller than gradients of values, and in long sequences are rounding alone. The median leaves out
#: elements smaller than the usual element of the step.
_FUSED = "attn.c_attn.weight"
#: Stored where no median was taken.
_NONE = -1.0
#: Numbers for each parameter in each step: distance, length, and effective number of elements.
_OF_A_STEP = 3
#: Numbers for each parameter in all steps: effective number of elements, and the median error of
#: one element.
_OF_ALL = 2
#: Numbers for each sequence in each call: distance and length.
_OF_A_CALL = 2


class Rows:
    """Sampled values: a row for each step, with a part for each stored parameter or sequence."""

    def __init__(
        self, ledger: LedgerEvidence, values: Array, steps: Sequence[int] | None = None
    ) -> None:
        """Take ``values``, row after row; each row belongs to one of ``steps`` (None: all steps).

        Raises:
            ValueError: the values are not a whole number of rows.
        """
        self._ledger = ledger
        self.names = [segment.name for segment in ledger.segments]
        self._counts = [segment.elements for segment in ledger.segments]
        self._halves = [half_of(count) for count in self._counts]
        self._length = sum(self._counts) + bool(ledger.moments) * sum(self._halves)
        self._values = values
        if not self._length or len(values) % self._length:
            raise ValueError(f"{len(values)} elements are no rows of {self._length}")
        #: Number of the step, or call, of each row.
        self.steps = range(len(self)) if steps is None else steps

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._values) // self._length

    def only(self, steps: Sequence[int]) -> Rows:
        """Return the rows of ``steps`` alone; these rows must cover all steps."""
        return Rows(self._ledger, [value for step in steps for value in self.row(step)], steps)

    def of_gradients(self) -> Rows:
        """Return the same rows without moments."""
        return self._part(self._counts, 0, range(len(self)))

    def of_moment(self, name: Moment) -> Rows:
        """Return the rows of one moment alone, for the steps that sampled the moment."""
        turns = self._ledger.moments
        steps = range(turns.index(name), len(self), len(turns))
        return self._part(self._halves, sum(self._counts), steps)

    def _part(self, counts: Sequence[int], first: int, steps: Sequence[int]) -> Rows:
        """Return ``counts`` columns of each parameter, from ``first`` on, in rows of ``steps``."""
        named = zip(self.names, counts, strict=True)
        segments = tuple(LedgerSegment(name=name, elements=count) for name, count in named)
        rows = (self.row(step) for step in steps)
        values = [value for row in rows for value in row[first : first + sum(counts)]]
        return Rows(LedgerEvidence(segments=segments), values, steps)

    def row(self, number: int) -> Array:
        """Return the values of row ``number``."""
        return self._values[number * self._length : (number + 1) * self._length]

    def every(self) -> Array:
        """Return all rows, joined in order."""
        return self._values

    def parts(self, number: int) -> dict[str, Array]:
        """Return the elements in row ``number`` by the name of the parameter or sequence."""
        row, first, found = self.row(number), 0, dict[str, Array]()
        for name, count in zip(self.names, self._counts, strict=True):
            found[name] = row[first : first + count]
            first += count
        return found


@dataclass(frozen=True)
class ComparedRows:
    """Rows of gradients, or of one moment, compared with the rows of an honest run."""

    names: Sequence[str]
    steps: Sequence[int]
    #: Name -> for each step: the gap, and the effective number of elements of the honest values.
    gaps: Mapping[str, Sequence[Gap]]
    told: Mapping[str, Sequence[float]]
    #: Name -> effective number of elements of the honest values in all steps together.
    told_in_all: Mapping[str, float]
    #: Name -> median relative error of one element, where ``FEW`` elements or more are non-zero in
    #: at least one run. Biases have no median. Rule L1 judges the medians of gradients only.
    medians: Mapping[str, float]

    @classmethod
    def of(cls, rows: Rows, again: Rows) -> ComparedRows:
        """Compare the first rows of ``rows`` with ``again``, as many as ``again`` has."""
        steps = rows.steps[: len(again)]
        shown, right = ([one.parts(n) for n in range(len(steps))] for one in (rows, again))
        pairs = {
            name: [(one[name], other[name]) for one, other in zip(shown, right, strict=True)]
            for name in rows.names
        }
        in_all = {
            name: [*chain.from_iterable(other for _, other in own)] for name, own in pairs.items()
        }
        return cls(
            names=rows.names,
            steps=steps,
            gaps={name: [gap(one, other) for one, other in own] for name, own in pairs.items()},
            told={name: [effective(other) for _, other in own] for name, own in pairs.items()},
            told_in_all={name: effective(values) for name, values in in_all.items()},
            medians={
                name: found
                for name, own in pairs.items()
                if (found := _median_error(name, own)) is not None
            },
        )

    def stored(self, kind: str) -> dict[str, StoredArray]:
        """Return the distances as arrays by name; ``read`` loads the arrays again.

        ``kind`` is ``gradients`` or a moment, such as ``exp_avg``. Shapes are ``[steps, parameters,
        3]`` and ``[parameters, 2]``, float32.
        """
        of_steps = [
            number
            for n in range(len(self.steps))
            for name in self.names
            for number in (
                self.gaps[name][n].distance,
                self.gaps[name][n].length,
                self.told[name][n],
            )
        ]
        of_all = [
            number
            for name in self.names
            for number in (self.told_in_all[name], self.medians.get(name, _NONE))
        ]
        return {
            kind: arrays.floats((len(self.steps), len(self.names), _OF_A_STEP), of_steps),
            f"{kind}{audited.OF_ALL_STEPS}": arrays.floats((len(self.names), _OF_ALL), of_all),
        }

    @classmethod
    def read(
        cls, stored: Arrays, kind: str, names: Sequence[str], first: int = 0, turns: int = 1
    ) -> ComparedRows:
        """Return the distances in ``stored`` for steps ``first``, ``first + turns`` and so on.

        Raises:
            LookupError: the arrays are missing.
            ValueError: the arrays have another size.
        """
        of_steps, of_all = stored[kind], stored[f"{kind}{audited.OF_ALL_STEPS}"]
        width = _OF_A_STEP * len(names)
        if not width or len(of_steps) % width or len(of_all) != _OF_ALL * len(names):
            raise ValueError(f"{kind}: distances of other parameters than the ledger has")
        count = len(of_steps) // width
        gaps = {
            name: [_gap_at(of_steps, n * width + _OF_A_STEP * at) for n in range(count)]
            for at, name in enumerate(names)
        }
        told = {name: of_steps[_OF_A_STEP * at + 2 :: width] for at, name in enumerate(names)}
        return cls(
            names=names,
            steps=range(first, first + count * turns, turns),
            gaps=gaps,
            told=told,
            told_in_all=dict(zip(names, of_all[::_OF_ALL], strict=True)),
            medians={
                name: median
                for name, median in zip(names, of_all[1::_OF_ALL], strict=True)
                if median != _NONE
            },
        )


def stored_calls(rows: Rows, again: Rows) -> dict[str, StoredArray]:
    """Return the gaps of all sequences in the calls that ``again`` repeated, as an array.

    The shape is ``[calls, sequences, 2]``: distance and length, float32. In mode generate a second
    array ``[calls, sequences]`` has the numbers of words that ``again`` draws otherwise.
    """
    names, generates = _sequences(rows.names), audited.TOKENS in rows.names
    found, others = list[float](), list[float]()
    for number in range(min(len(rows), len(again))):
        shown, right = rows.parts(number), again.parts(number)
        for name in names:
            one = gap(shown[name], right[name])
            found += (one.distance, one.length)
        if generates:
            words, own = shown[audited.TOKENS], right[audited.TOKENS]
            each = len(words) // len(names)
            for first in range(0, each * len(names), each):
                pairs = zip(words[first : first + each], own[first : first + each], strict=True)
                others.append(float(sum(one != other for one, other in pairs)))
    count = len(found) // max(1, _OF_A_CALL * len(names))
    made = {audited.LOGITS: arrays.floats((count, len(names), _OF_A_CALL), found)}
    if generates:
        made[audited.TOKENS] = arrays.floats((count, len(names)), others)
    return made


def _sequences(names: Iterable[str]) -> list[str]:
    """Return the names of the sequences in a row with ``names``."""
    return [name for name in names if name not in (audited.TOKENS, audited.NOISE)]


def gaps_of_calls(
    stored: Arrays, names: Sequence[str], calls: Sequence[int]
) -> dict[tuple[int, str], Gap]:
    """Return the ``stored`` gaps by number of the call and name of the sequence.

    Raises:
        LookupError: the array is missing.
        ValueError: the array is for another number of sequences.
    """
    names = _sequences(names)
    values, width = stored[audited.LOGITS], _OF_A_CALL * len(names)
    if not width or len(values) % width or len(values) // width > len(calls):
        raise ValueError("distances of other sequences than the ledger has")
    return {
        (calls[number], name): _gap_at(values, number * width + _OF_A_CALL * at)
        for number in range(len(values) // width)
        for at, name in enumerate(names)
    }


def words_of_calls(stored: Arrays, names: Sequence[str], calls: Sequence[int]) -> dict[int, float]:
    """Return the numbers of words that an honest run draws otherwise, by number of the call.

    A call's words are those of all sequences. Empty where no words are drawn.

    Raises:
        LookupError: the array is missing.
        ValueError: the array is for another number of sequences or calls.
    """
    if audited.TOKENS not in names:
        return {}
    width, values = len(_sequences(names)), stored[audited.TOKENS]
    if len(values) * _OF_A_CALL != len(stored[audited.LOGITS]) or len(values) > width * len(calls):
        raise ValueError("words of other sequences than the ledger has")
    return {
        calls[number]: sum(values[number * width : (number + 1) * width])
        for number in range(len(values) // width)
    }


def _gap_at(values: Array, place: int) -> Gap:
    return Gap(values[place], values[place + 1])


def _median_error(name: str, pairs: Sequence[tuple[Array, Array]]) -> float | None:
    """Return the median relative error of one element.

    Most of the length of a head's gradient lies in the few words that come next. All other words
    have small elements, which an approximated softmax gets wrong. Elements that are zero in both
    runs are left out, such as elements of words that do not occur.
    """
    both = [
        (a, b)
        for shown, right in pairs
        for least in [_usual(right) if name.endswith(_FUSED) else 0.0]
        for a, b in zip(shown, right, strict=True)
        if not abs(b) < least
    ]
    errors = [abs(a - b) / abs(b) if b else math.inf for a, b in both if a or b]
    # Most elements of a query's or key's bias gradient are rounding alone, in every implementation.
    if len(errors) < FEW or name.endswith(("bias", *UNSEEN)):
        return None
    return math.nan if any(map(math.isnan, errors)) else statistics.median(errors)


def _usual(values: Array) -> float:
    """Return the root of the mean square of ``values``."""
    return math.sqrt(sum(value * value for value in values) / max(1, len(values)))
