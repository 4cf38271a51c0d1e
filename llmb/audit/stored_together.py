"""Rule G1: the ways in which a plugin may store the model's parameters.

The limits of a single parameter are limits of a stored parameter. If a plugin stored the whole
model in one parameter, a gradient left out would count beside all other gradients. So only these
matrices may be stored together: queries, keys and values; gate and up; and one of these kinds of
all layers, as for a scan over layers.

Each stored parameter has as many sampled elements as any other. One matrix in hundreds of pieces
would have nearly all samples, and a matrix in a large padding nearly none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

from llmb.audit.judged_steps import kind_of
from llmb.audit.stored_places import Elements, held
from llmb.families import FAMILIES

#: Kinds of matrices whose products one kernel computes.
_TOGETHER = (("q", "k", "v"), ("gate", "up"))
_LAYER = re.compile(r"\.(\d+)\.")
#: Most stored parameters, for each parameter of the model, and besides. Keys, queries and values of
#: GPT-2 apart make 1.3 of one.
_PIECES, _MORE_PIECES = 1.5, 32
#: Largest share of padding in a stored parameter, and the standard deviations added to it: a step
#: may read a single half of a parameter.
_PADDING, _DEVIATIONS = 0.5, 2.0
#: Share of the model's elements that may lie in more padding, in all. Example: a kernel pads a head
#: of two rows to 16 rows.
_SMALL = 1e-3


def _groups() -> Iterator[tuple[str, str]]:
    """Yield the kind of a matrix, and the first kind of its group, for each kind in a group."""
    for family in FAMILIES.values():
        for kinds in _TOGETHER:
            named = [kind_of(family.matrices[k].format(0)) for k in kinds if k in family.matrices]
            yield from ((one, named[0]) for one in named)


_GROUP = dict(_groups())


def mixed(
    stored: Sequence[str],
    counts: Sequence[int],
    where: Sequence[int],
    shapes: Mapping[str, Sequence[int]],
    *,
    one_layer: bool,
) -> str | None:
    """Return the first stored parameter with matrices that may not be stored together; else None.

    A row of ``where`` has ``counts`` positions in the model for each of the parameters ``stored``,
    in turn; -1 is padding. ``shapes`` has the model's parameters in order. ``one_layer``: matrices
    of several layers may not be stored together either, because the direction of a whole stack
    tells little of one layer. Example: ``flat holds model.layers.0.mlp.down_proj.weight and
    model.layers.0.mlp.up_proj.weight``.

    Raises:
        ValueError: the positions are no whole rows, or the model has no such element.
    """
    elements = Elements({name: math.prod(shape) for name, shape in shapes.items()})
    for name, contents in zip(stored, held(counts, where, elements), strict=True):
        names = {one for one, _ in contents}
        matrices = sorted(one for one in names if len(shapes[one]) > 1)
        strangers = _strangers(matrices, sorted(names.difference(matrices)), one_layer=one_layer)
        if strangers is not None:
            return f"{name} holds {' and '.join(strangers)}"
    return None


def starved(
    stored: Sequence[str],
    counts: Sequence[int],
    where: Sequence[int],
    shapes: Mapping[str, Sequence[int]],
) -> str | None:
    """Return why too few elements are read of some of the model's parameters; None otherwise.

    The arguments are those of ``mixed``. Example: ``94 % of flat is padding``.
    """
    most = int(_PIECES * len(shapes)) + _MORE_PIECES
    if len(stored) > most:
        return (
            f"the model's {len(shapes)} parameters are stored in {len(stored)}, and few elements "
            f"of each are read: store {most} at most"
        )
    rows = range(0, len(where), sum(counts))
    largest = _PADDING + _DEVIATIONS * 0.5 / math.sqrt(max(1, len(rows)))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    contents = dict(zip(stored, held(counts, where, Elements(sizes)), strict=True))
    small = _SMALL * sum(sizes.values())
    for name, (begin, end) in zip(stored, pairwise(accumulate(counts, initial=0)), strict=True):
        read = [place for row in rows for place in where[row + begin : row + end]]
        padding = sum(place < 0 for place in read) / max(1, len(read))
        if padding > largest:
            inside = {one for one, _ in contents[name]}
            small -= sum(sizes[one] for one in inside) if inside else math.inf
        if padding > largest and small < 0:
            return (
                f"{padding:.0%} of {name} is padding, and few elements of the model are read "
                f"there: pad a parameter to twice its size at most"
            )
    return None


def _strangers(
    matrices: Sequence[str], vectors: Sequence[str], *, one_layer: bool
) -> tuple[str, str] | None:
    """Return two parameters that may not be stored together; None if all may be.

    Vectors may be stored with vectors, and with a matrix of their module.
    """
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
