"""Rule L1: the parameter map places stored elements as a model can be stored.

After the stream a plugin's parameter map names the model element of each sampled element of a
stored parameter. A false map can give a matrix to words that no step has. The gradients of these
words are zero, as are the gradients that were never computed. Two facts about the places refute a
false map:

- no element of the model lies in two stored places;
- every parameter of the model is found among the sampled elements, in proportion to its size.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from llmb.audit.judged_steps import kind_of

#: Share of a parameter's elements that must be found, less this many standard deviations of the
#: estimate.
_FOUND, _DEVIATIONS = 0.9, 3.0
#: Fewer steps may all have read the same half of a parameter, such as queries, but no keys.
_LEAST_STEPS = 10
#: Share of a stored parameter at each end: the rare elements read there would outweigh all others.
_END = 0.02
#: Samples expected of a parameter that lies in a stored parameter and must then be seen there.
_SEEN = 64
_PADDING = ""


@dataclass(frozen=True)
class StoredSamples:
    """The sampled elements of one stored parameter, in all steps."""

    #: Elements of the stored parameter, sampled or not.
    size: int
    #: Index of each sampled element in the stored parameter.
    indices: Sequence[int]
    #: Position of each sampled element in the model, counted through all parameters; -1 is padding.
    positions: Sequence[int]


def fault(samples: Sequence[StoredSamples], sizes: Mapping[str, int], steps: int) -> str | None:
    """Return the reason why no model is stored as ``samples`` say; None if a model may be.

    ``sizes`` has the element count of each parameter of the model, in the model's own order.
    ``steps`` counts the steps that read the samples.
    """
    elements = Elements(sizes)
    twice = _stored_twice(samples, elements)
    if twice is not None:
        return twice
    lost = min(_lost(samples, elements, steps), key=lambda one: one.share, default=None)
    if lost is None:
        return None
    return (
        f"the parameter map finds {lost.share:.0%} of the elements of {lost.name} among the "
        f"elements that were read (at least {lost.least:.0%})"
    )


class Elements:
    """The elements of a model, counted through all parameters."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.names = [*sizes]
        self._ends = [*accumulate(sizes.values())]

    def name_of(self, position: int) -> str:
        """Return the parameter of an element.

        Raises:
            ValueError: the model has no such element.
        """
        return self.of(position)[0]

    def of(self, position: int) -> tuple[str, float]:
        """Return the parameter of an element, and where the element lies there, from 0 to 1.

        Raises:
            ValueError: the model has no such element.
        """
        number = bisect_right(self._ends, position)
        if number == len(self.names):
            raise ValueError(f"element {position} is none of the model's {self._ends[-1]}")
        name = self.names[number]
        return name, 1 - (self._ends[number] - position) / self.sizes[name]


def held(
    counts: Sequence[int], where: Sequence[int], elements: Elements
) -> list[set[tuple[str, float]]]:
    """Return the contents of each stored parameter, as far as samples show the contents.

    A row of ``where`` has ``counts`` positions in the model for each stored parameter in turn; -1
    is padding. The contents are the elements of the model by ``Elements.of``.

    Raises:
        ValueError: the positions are no whole rows, or the model has no such element.
    """
    width = sum(counts)
    if not width or len(where) % width:
        raise ValueError(f"{len(where)} places are no rows of {width} elements")
    found = []
    for begin, end in pairwise(accumulate(counts, initial=0)):
        rows = range(0, len(where), width)
        places = {place for row in rows for place in where[row + begin : row + end] if place >= 0}
        found.append({elements.of(place) for place in places})
    return found


@dataclass(frozen=True)
class _Lost:
    name: str
    share: float
    least: float


def _stored_twice(samples: Sequence[StoredSamples], elements: Elements) -> str | None:
    place = dict[int, tuple[int, int]]()
    for number, one in enumerate(samples):
        for index, position in zip(one.indices, one.positions, strict=True):
            if position >= 0 and place.setdefault(position, (number, index)) != (number, index):
                name = elements.name_of(position)
                return f"the parameter map finds an element of {name} in two places"
    return None


def _lost(samples: Sequence[StoredSamples], elements: Elements, steps: int) -> Iterator[_Lost]:
    """Yield the parameters, and kinds of parameters, of which too few elements were found.

    A step may see a single part of a stored parameter with elements of several parameters, so the
    variance of a share ``s`` is that of ``steps`` draws: ``s (1 - s) / steps``. A parameter that is
    too small to be seen there at all counts with the share that it would have, if there is room
    for it beside the parameters that were seen.
    """
    read = [one for one in samples if one.indices]
    if steps < _LEAST_STEPS:
        return
    shares = [_shares(one, elements) for one in read]
    room = [
        one.size > sum(elements.sizes.get(name, 0) for name in own)
        for one, own in zip(read, shares, strict=True)
    ]
    for name, names in _groups(elements.names):
        size = sum(elements.sizes[each] for each in names)
        found = variance = 0.0
        for one, own, rest in zip(read, shares, room, strict=True):
            share = min(1.0, sum(own.get(each, 0.0) for each in names))
            found += one.size * share
            if not share and rest and size * len(one.indices) < _SEEN * one.size:
                share = size / one.size
            variance += one.size**2 * share * (1 - share) / steps
        least = _FOUND * size - _DEVIATIONS * math.sqrt(variance)
        if found < least:
            yield _Lost(name, found / size, least / size)


def _shares(one: StoredSamples, elements: Elements) -> dict[str, float]:
    """Return the estimated share of each parameter of the model in a stored parameter.

    ``drawn_places`` reads the middle of a stored parameter more often than both ends: element ``u``
    (from 0 to 1) with a density of ``-2 u ln(u) - 2 (1 - u) ln(1 - u)``, of which the factor 2 does
    not count here. Elements nearer to an end than ``_END`` weigh as much as those at ``_END``.
    """
    found, whole = defaultdict[str, float](float), 0.0
    for index, position in zip(one.indices, one.positions, strict=True):
        u = min(max(index / one.size, _END), 1 - _END)
        weight = -1 / (u * math.log(u) + (1 - u) * math.log1p(-u))
        whole += weight
        found[elements.name_of(position) if position >= 0 else _PADDING] += weight
    return {name: weight / whole for name, weight in found.items()}


def _groups(names: Iterable[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each parameter, and each kind of parameter in all layers."""
    kinds = defaultdict[str, list[str]](list)
    for name in names:
        yield name, [name]
        kinds[kind_of(name)].append(name)
    yield from ((kind, named) for kind, named in kinds.items() if len(named) > 1)
