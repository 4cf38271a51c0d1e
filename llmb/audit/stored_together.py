"""Rule G1: which parameters of the model may be stored in one parameter.

The limits of a single parameter are limits of a stored parameter. A plugin that stores the whole
model in one parameter would have no such limits: a gradient that is left out would count beside all
others. So matrices may be stored together if one kernel computes their products (queries, keys and
values; gate and up), and matrices of one kind in all layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from llmb.audit.judged_steps import kind_of
from llmb.audit.stored_places import Elements
from llmb.families import FAMILIES

#: Kinds of matrices whose products one kernel computes.
_TOGETHER = (("q", "k", "v"), ("gate", "up"))
_LAYER = re.compile(r"\.(\d+)\.")


def _groups() -> Iterator[tuple[str, str]]:
    """Yield the kind of each matrix that may be stored with others, and a name for all of these."""
    for family in FAMILIES.values():
        for kinds in _TOGETHER:
            named = [kind_of(family.matrices[k].format(0)) for k in kinds if k in family.matrices]
            yield from ((one, named[0]) for one in named)


_GROUP = dict(_groups())


def mixed(
    stored: Sequence[str],
    counts: Sequence[int],
    rows: Iterable[Sequence[int]],
    shapes: Mapping[str, Sequence[int]],
    *,
    one_layer: bool,
) -> str | None:
    """Return why parameters of a plugin cannot be judged one by one; None if they can be.

    Each of ``rows`` has ``counts`` places in the model of each of the parameters ``stored``, in
    turn; -1 is padding. ``shapes`` has the model's parameters in order. ``one_layer``: matrices of
    several layers may not be stored together, because a direction of all of them tells little of
    one. Example: ``flat holds model.layers.0.mlp.down_proj.weight and ...up_proj.weight``.

    Raises:
        ValueError: the model has no such place.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    elements, every = Elements(sizes), [set[str]() for _ in stored]
    for row in rows:
        for found, (begin, end) in zip(every, pairwise(accumulate(counts, initial=0)), strict=True):
            found |= {elements.name_of(place) for place in row[begin:end] if place >= 0}
    for name, found in zip(stored, every, strict=True):
        matrices = sorted(one for one in found if len(shapes[one]) > 1)
        strangers = _strangers(matrices, sorted(found.difference(matrices)), one_layer=one_layer)
        if strangers is not None:
            return f"{name} holds {' and '.join(strangers)}"
    return None


def _strangers(
    matrices: Sequence[str], vectors: Sequence[str], *, one_layer: bool
) -> tuple[str, str] | None:
    """Return two parameters that may not be stored together; vectors alone always may be."""
    if not matrices:
        return None
    first, modules = matrices[0], {_module(one) for one in matrices}
    for one in matrices[1:]:
        if _group(one) != _group(first) or (one_layer and _layer(one) != _layer(first)):
            return first, one
    return next(((first, one) for one in vectors if _module(one) not in modules), None)


def _group(name: str) -> str:
    kind = kind_of(name)
    return _GROUP.get(kind, kind)


def _layer(name: str) -> str | None:
    found = _LAYER.search(name)
    return None if found is None else found[1]


def _module(name: str) -> str:
    return name.rpartition(".")[0]
