"""The measured precision recipe of models with one kind of product in FP8."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llmb.audit.precision_recipe import products
from llmb.config import BF16, FP16, FP32, Precision
from llmb.records.precision_recipe import FORWARD, INPUT, PV, QK, WEIGHT, PairsEvidence
from llmb.reference.shapes import LlamaShape, Shape
from llmb.workloads.facts import MIXED_BF16
from tests.narrow_product import BERT_PROJECTIONS, GPT2_PROJECTIONS
from tests.unit.builders_pairs import BERT, GPT2, UNGATED, recipe, seen

#: Eight query heads share two key/value heads: in each layer one thing beside the base is seen.
GROUPED = LlamaShape(
    vocab_size=640,
    hidden_size=256,
    intermediate_size=128,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    sequence_length=32,
)
SHAPES: dict[str, Shape] = {"grouped": GROUPED, "ungated": UNGATED, "gpt2": GPT2, "bert": BERT}
HEADS = ("head", "wte", "word_embeddings")
#: Product in FP8 -> products that need not be measured then: its narrow operands cover them.
COVERED = {
    "o": {(PV, FORWARD), (QK, FORWARD)},
    "q": {(QK, FORWARD)},
    "k": {(QK, FORWARD)},
    PV: {(QK, FORWARD)},
    "attn.c_attn": {(QK, FORWARD)},
    "attn.c_proj": {(PV, FORWARD), (QK, FORWARD)},
    "query": {(QK, FORWARD)},
    "key": {(QK, FORWARD)},
    "attention.output.dense": {(PV, FORWARD), (QK, FORWARD)},
}


def each_product() -> Iterator[object]:
    for name, shape in SHAPES.items():
        for kind in dict.fromkeys(product.name for product in products(shape)):
            for precision in (BF16, FP32):
                yield pytest.param(shape, kind, precision, id=f"{name}-{kind}-{precision.name}")


def formats(shape: Shape, precision: Precision, *kinds: str) -> dict[tuple[str, str], set]:
    """Return the formats of each product in the layers that show it; None if none does."""
    mixed = precision.master_weights
    shown = PairsEvidence(seen=seen(shape, *kinds, dtype=precision.dtype, mixed=mixed))
    found = recipe(shown, shape=shape, precision=precision)
    assert found is not None
    every: dict[tuple[str, str], set] = {}
    for row in found.rows:
        every.setdefault((row.product, row.direction), set()).add(row.format)
    return {key: some - {None} or {None} for key, some in every.items()}


@pytest.mark.parametrize(("shape", "kind", "precision"), [*each_product()])
def test_a_kind_of_product_in_fp8_is_told_and_the_others_are_what_they_are(
    shape: Shape, kind: str, precision: Precision
) -> None:
    covered = COVERED.get(kind, set())
    for (product, direction), found in formats(shape, precision, kind).items():
        if product in (QK, PV) and direction == INPUT:
            assert found == {None}, (product, direction)
        elif (product, direction) in covered:
            assert found in ({None}, {precision.name}), (product, direction)
        else:
            expected = "FP8" if product == kind else precision.name
            assert found == {expected}, (product, direction)


@pytest.mark.parametrize("way", [FORWARD, INPUT, WEIGHT])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("grouped", kind) for kind in ("q", "k", "v", "o", "head")),
        *(("ungated", kind) for kind in ("up", "down")),
        *(("gpt2", kind) for kind in GPT2_PROJECTIONS),
        *(("bert", kind) for kind in BERT_PROJECTIONS),
    ],
)
def test_each_direction_of_a_product_is_told_apart(name: str, kind: str, way: str) -> None:
    narrow = PairsEvidence(seen=seen(SHAPES[name], kind, ways=(way,)))
    found = recipe(narrow, shape=SHAPES[name], precision=FP32)
    assert found is not None
    odd = {(row.product, row.direction) for row in found.rows if row.format not in ("FP32", None)}
    assert odd == {(kind, way)}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("precision", "name"), [(FP16, "FP16"), (MIXED_BF16, "BF16")])
def test_in_fp16_and_in_mixed_precision_nothing_looks_narrow(
    shape: Shape, precision: Precision, name: str
) -> None:
    found = formats(shape, precision)
    assert {key for key, names in found.items() if names == {None}} == {(QK, INPUT), (PV, INPUT)}
    assert set.union(*found.values()) == {name, None}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_all_projections_in_fp8_hide_none_of_each_other(shape: Shape) -> None:
    names = {product.name for product in products(shape)} - {QK, PV, *HEADS}
    found = formats(shape, BF16, *names)
    assert all(found[key] == {"FP8"} for key in found if key[0] in names)
    assert {format for key in found if key[0] in HEADS for format in found[key]} == {"BF16"}
