"""Parameter maps that a model can have, and maps that give parameters away (rule L1)."""

from __future__ import annotations

import math

import pytest

from llmb.audit.stored_places import StoredSamples, fault
from llmb.records.places import ELEMENTS, drawn_places

WIDTH, WORDS, STEPS = 64, 100_000, 20
SIZES = {
    "embedding": WORDS * WIDTH,
    **{f"layers.{n}.{p}": WIDTH * WIDTH for n in range(2) for p in ("q", "k", "v", "up")},
    **{f"layers.{n}.norm": WIDTH for n in range(2)},
}
FIRST = dict(zip(SIZES, [sum([*SIZES.values()][:n]) for n in range(len(SIZES))], strict=True))


def plain(name):
    return (SIZES[name],), lambda index: FIRST[name] + index


def rows(*names):
    """Store matrices one after the other."""

    def position(index):
        number, within = divmod(index, WIDTH * WIDTH)
        return FIRST[names[number]] + within

    return (len(names) * WIDTH, WIDTH), position


def columns(*names):
    """Store transposed matrices side by side."""

    def position(index):
        column, row = divmod(index, len(names) * WIDTH)
        number, row = divmod(row, WIDTH)
        return FIRST[names[number]] + row * WIDTH + column

    return (WIDTH, len(names) * WIDTH), position


def padded(name, to):
    """Store a matrix with rows of ``to`` elements, the last of them padding."""

    def position(index):
        row, column = divmod(index, to)
        return FIRST[name] + row * WIDTH + column if column < WIDTH else -1

    return (WIDTH, to), position


def said(stored, steps=STEPS, seed=0):
    """Return what L1 says of a map: a shape and a function from index to position for each."""
    shapes = [shape for shape, _ in stored]
    parts = [([], []) for _ in stored]
    for step in range(steps):
        drawn = drawn_places(1000 * seed + step, shapes, ELEMENTS)
        for (indices, positions), (first, stride, count), (_, position) in zip(
            parts, drawn, stored, strict=True
        ):
            own = range(first, first + stride * count, stride)
            indices.extend(own)
            positions.extend(map(position, own))
    samples = [
        StoredSamples(math.prod(shape), *part) for shape, part in zip(shapes, parts, strict=True)
    ]
    return fault(samples, SIZES, steps)


def others(*names):
    return [plain(name) for name in SIZES if name not in names]


QKV = [f"layers.0.{p}" for p in ("q", "k", "v")]
HONEST = {
    "plain": others(),
    "rows": [*others(*QKV), rows(*QKV)],
    "columns": [*others(*QKV), columns(*QKV)],
    "padded": [*others("layers.1.up"), padded("layers.1.up", 256)],
    "one buffer": [((sum(SIZES.values()),), lambda index: index)],
}


@pytest.mark.parametrize("layout", HONEST)
def test_a_model_may_be_stored_so(layout):
    assert [said(HONEST[layout], seed=seed) for seed in range(20)] == [None] * 20


def test_a_matrix_given_to_words_is_lost():
    given = (WIDTH, WIDTH), lambda index: FIRST["embedding"] + index
    told = said([*others("layers.1.up"), given])
    assert told is not None
    assert "finds 0% of the elements of layers.1.up" in told
    assert "at least 90%" in told


def test_a_matrix_called_padding_is_lost():
    told = said([*others("layers.1.up"), ((WIDTH, WIDTH), lambda index: -1)])
    assert told is not None
    assert "finds 0% of the elements of layers.1.up" in told


def test_half_a_matrix_stored_twice_is_found():
    twice = (WIDTH, WIDTH), lambda index: FIRST["layers.1.up"] + index // 2
    told = said([*others("layers.1.up"), twice])
    assert told == "the parameter map finds an element of layers.1.up in two places"


def test_a_part_of_a_fused_matrix_given_away_is_lost():
    shape, position = rows(*QKV)

    def given(index):
        own = position(index)
        return own - FIRST["layers.0.v"] if own >= FIRST["layers.0.v"] else own

    told = said([*others(*QKV), (shape, given)])
    assert told is not None
    assert "layers.0.v" in told


def test_of_few_steps_only_what_is_stored_twice_is_judged():
    given = (WIDTH, WIDTH), lambda index: FIRST["embedding"] + index
    assert said([*others("layers.1.up"), given], steps=9) is None


def test_a_place_outside_the_model_is_refused():
    beyond = sum(SIZES.values())
    outside = (WIDTH, WIDTH), lambda index: beyond + index
    with pytest.raises(ValueError, match=f"none of the model's {beyond}"):
        said([*others("layers.1.up"), outside])
