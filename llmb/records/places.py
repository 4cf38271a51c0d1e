"""The sampled elements of each parameter in a ledger row, which follow from the nonce (rule L1)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from llmb.records.draws import LEAST_BITS

#: Up to 128 parameters, each parameter shows the full number of elements. With more parameters,
#: each shows fewer: a bundle keeps its size (docs/adr/0023).
_AT_FULL_LENGTH = 128
#: Elements of each gradient, or of each sequence's logits, sampled in a step.
ELEMENTS = 64
#: Elements of each gradient of a judged step, if L1 does not compare every step. In formats of
#: fewer than 8 bits more of them: a few elements hold most of an honest error. Example: the error
#: of an honest gate_proj of 12 layers in NVFP4 was 1.19 of its length in 256 elements.
_OF_JUDGED, _OF_JUDGED_NARROW = 256, 1024


def fewer(count: int, parameters: int) -> int:
    """Return the number of elements per parameter: ``count``, or fewer for many ``parameters``."""
    return min(count, max(1, count * _AT_FULL_LENGTH // max(1, parameters)))


def of_judged(bits: int) -> int:
    """Return the elements of each gradient of a judged step in a format of ``bits``."""
    return _OF_JUDGED if bits >= LEAST_BITS else _OF_JUDGED_NARROW


def drawn_places(
    seed: int, shapes: Sequence[Sequence[int]], count: int
) -> Iterator[tuple[int, int, int]]:
    """Yield first element, stride and number of the elements of each parameter of ``shapes``.

    At most ``count`` elements; all elements of a small parameter. The stride has no common factor
    with the number of columns, because otherwise a few columns would stand for all. Example: in a
    head, such elements are all large or all small.
    """
    draw = random.Random(f"places:{seed}")
    for shape in shapes:
        size = math.prod(shape)
        least = min(size, count)
        if least <= 1:
            yield int(draw.random() * size) if size > 1 else 0, 1, least
            continue
        longest = (size - 1) // (least - 1)
        shortest = (longest + 1) // 2
        stride = shortest + int(draw.random() * (longest - shortest + 1))
        columns = shape[-1] if len(shape) > 1 else 1
        while math.gcd(stride, columns) > 1:
            stride -= 1
        first = int(draw.random() * (size - stride * (least - 1)))
        yield first, stride, least


def ranges_of(sizes: Mapping[str, int]) -> dict[str, range]:
    """Return the places of each parameter's elements, counted through all parameters in order."""
    ends = accumulate(sizes.values())
    return {name: range(end - size, end) for (name, size), end in zip(sizes.items(), ends)}  # noqa: B905


def plain_row(seed: int, shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the elements that a step reads with ``seed``, counted through the whole model.

    Valid if parameters are stored as in the reference. Example: the second element of a second
    parameter, after a first parameter of 10 elements, is number 11.
    """
    found, before = list[int](), 0
    drawn = drawn_places(seed, shapes, fewer(ELEMENTS, len(shapes)))
    for shape, (first, stride, count) in zip(shapes, drawn, strict=True):
        begin = before + first
        found += range(begin, begin + stride * count, stride)
        before += math.prod(shape)
    return found
