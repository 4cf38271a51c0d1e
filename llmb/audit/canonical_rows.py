"""Rows of sampled elements with a part for each parameter of the model.

A plugin may store queries, keys and values in one parameter. Most of the length of the gradient is
that of the values, so faults in the gradients of queries and keys would stay within the limits of
the whole. Where steps can be repeated exactly, each parameter of the model is judged apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmb.audit.bench import VALUES, WEIGHTS, Bench
from llmb.audit.canonical_names import distinct, names_of
from llmb.audit.compared_rows import Rows
from llmb.audit.judged_steps import kind_of
from llmb.audit.stored_places import Elements, held
from llmb.config import Precision
from llmb.records import audited
from llmb.records.arrays import Array
from llmb.records.audited import LedgerEvidence, LedgerSegment
from llmb.records.evidence import WeightsEvidence
from llmb.records.finding import JUDGED_SINCE

#: A format with fewer bits of exponent may scale a stored parameter as a whole: small gradients of
#: queries and keys then have the rounding errors of the gradients of values, as in INT8.
_LEAST_EXPONENT_BITS = 4


def of_bench(bench: Bench, ledger: LedgerEvidence) -> CanonicalRows:
    """Return the form of the rows of the training in ``bench``, stored as ``ledger`` says.

    By rules 3 and older a stored parameter was judged as a whole.
    """
    apart = is_apart(bench.facts.precision, rough=bench.why_rough is not None)
    return CanonicalRows.of(
        ledger,
        bench.whole_numbers(VALUES).get(audited.WHERE),
        bench.read(WEIGHTS),
        apart=apart and int(bench.facts.rules_version) >= JUDGED_SINCE,
    )


def is_apart(precision: Precision, *, rough: bool) -> bool:
    """Tell whether parameters of the model are judged apart within a stored parameter.

    ``rough``: no step can be repeated exactly (``llmb.records.draws.why_rough``).
    """
    known = precision.judged_as
    if rough or known is None:
        return False
    return known.format is None or known.format.gradient.exponent_bits >= _LEAST_EXPONENT_BITS


@dataclass(frozen=True)
class CanonicalRows:
    """The form of rows whose parts are parameters of the model.

    A stored parameter with several kinds of parameters becomes as many parts. Each part is as wide
    as the stored parameter, and has zeros in place of the elements of other parts: zeros change no
    distance. Example: 64 elements of ``qkv`` become three parts of 64 elements.
    """

    #: Names and widths of the parts.
    ledger: LedgerEvidence
    _stored: LedgerEvidence
    #: For each stored parameter, the names of its parts by kind of parameter.
    _parts: Sequence[Mapping[str, str]]
    #: For each step, the kind of parameter of each element; no steps if all have a single part.
    _kinds: Sequence[Sequence[str]] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        stored: LedgerEvidence,
        where: Sequence[int] | None,
        weights: WeightsEvidence | None,
        *,
        apart: bool,
    ) -> CanonicalRows:
        """Return the form of rows that are ``stored`` in the plugin's parameters.

        ``where`` has the places of the sampled elements in the model, row after row; -1 is padding.
        Without places all parameters are stored plainly, under the model's own names. Not
        ``apart``: a stored parameter has a single part, whatever the contents are.

        Raises:
            ValueError: the places are no whole rows, or the model has no such place.
        """
        if where is None or weights is None:
            return cls(stored, stored, [{"": one.name} for one in stored.segments])
        counts = [one.elements for one in stored.segments]
        elements = Elements(weights.sizes)
        whole = names_of([one.name for one in stored.segments], counts, where, weights)
        contents = [{name for name, _ in one} for one in held(counts, where, elements)]
        parts = [_parts(name, own, apart=apart) for name, own in zip(whole, contents, strict=True)]
        kinds = list[list[str]]()
        if any(len(own) > 1 for own in parts):
            of_name = {name: kind_of(name) for name in weights.sizes}
            width = sum(counts)
            # Padding belongs to the first part.
            kinds = [
                [of_name[elements.name_of(place)] if place >= 0 else "" for place in row]
                for row in (where[n : n + width] for n in range(0, len(where), width))
            ]
        names = iter(distinct([name for own in parts for name in own.values()]))
        parts = [{kind: next(names) for kind in own} for own in parts]
        segments = tuple(
            LedgerSegment(name=name, elements=one.elements)
            for one, own in zip(stored.segments, parts, strict=True)
            for name in own.values()
        )
        return cls(stored.model_copy(update={"segments": segments}), stored, parts, kinds)

    @property
    def names(self) -> list[str]:
        """The names of the parts."""
        return [one.name for one in self.ledger.segments]

    def rows(
        self, values: Array, steps: Sequence[int] | None = None, *, moments: bool = True
    ) -> Rows:
        """Return stored ``values``, row after row, as rows of the model's parameters.

        Each row belongs to one of ``steps`` (None: all steps). Not ``moments``: rows of gradients
        alone.

        Raises:
            ValueError: the values are no whole rows, or there are no places of a step.
        """
        without = {} if moments else {"moments": ()}
        ledger = self.ledger.model_copy(update=without)
        rows = Rows(self._stored.model_copy(update=without), values, steps)
        if not self._kinds:
            return Rows(ledger, values, steps)
        if any(step >= len(self._kinds) for step in rows.steps):
            raise ValueError(f"there are places of {len(self._kinds)} steps alone")
        found = list[float]()
        for number, step in enumerate(rows.steps):
            kinds = self._kinds[step]
            gradients = len(kinds)
            found += self._spread(rows.row(number)[:gradients], kinds, every=1)
            if ledger.moments:
                found += self._spread(rows.row(number)[gradients:], kinds, every=2)
        return Rows(ledger, found, steps)

    def _spread(self, row: Array, kinds: Sequence[str], *, every: int) -> Iterator[float]:
        """Yield the values of each part; ``row`` has a value for every (other) element."""
        first = begin = 0
        for one, own in zip(self._stored.segments, self._parts, strict=True):
            of_values = kinds[first : first + one.elements : every]
            values = row[begin : begin + len(of_values)]
            first, begin = first + one.elements, begin + len(of_values)
            if len(own) == 1:
                yield from values
                continue
            rest = next(iter(own))
            for part in own:
                pairs = zip(values, of_values, strict=True)
                yield from (value if (kind or rest) == part else 0.0 for value, kind in pairs)


def _parts(stored: str, names: Collection[str], *, apart: bool) -> dict[str, str]:
    """Return the names of the parts of the parameter ``stored``, by kind of parameter.

    A part has the name of the model's parameter, or of the kind if there are several.
    Example: ``layers.*.self_attn.q_proj.weight``.
    """
    kinds = dict[str, list[str]]()
    for name in sorted(names):
        kinds.setdefault(kind_of(name), []).append(name)
    if not apart or len(kinds) < 2:
        return {"": stored}
    return {kind: own[0] if len(own) == 1 else kind for kind, own in kinds.items()}
