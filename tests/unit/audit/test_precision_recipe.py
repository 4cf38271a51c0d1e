"""The measured precision recipe, from pairs with known differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from llmb.audit.precision_recipe import format_of, products
from llmb.config import BF16, FP32, Precision
from llmb.records.precision_recipe import (
    FORWARD,
    INPUT,
    PV,
    QK,
    WEIGHT,
    Direction,
    FormatShare,
    PairSeen,
    PairsEvidence,
    PrecisionRecipe,
)
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape
from llmb.workloads.arithmetic import flops_per_token
from tests.unit.builders_pairs import recipe

SHAPE = LlamaShape()
LINEAR = ("q", "k", "v", "o", "gate", "up", "down")
FP8_BITS, BF16_BITS = 5.0, 9.0  # as a pair shows them
Bits = Mapping[tuple[str, str], float]


def pairs(layers: int, narrow: Bits, usual: float) -> PairsEvidence:
    every = (FORWARD, INPUT, WEIGHT)
    found = (
        PairSeen(
            product=name,
            direction=way,
            layer=layer,
            difference=2.0 ** -narrow.get((name, way), usual),
            length=1.0,
        )
        for name in (*LINEAR, "head", QK, PV)
        for way in (every[:1] if name in (QK, PV) else every)
        for layer in range(1 if name == "head" else layers)
    )
    return PairsEvidence(seen=tuple(found), weights=("bfloat16",))


def seen(narrow: Bits = {}, usual: float = 20.0) -> PairsEvidence:  # noqa: B006 (never written)
    return pairs(SHAPE.num_hidden_layers, narrow, usual)


LINEAR_IN_FP8 = {(name, way): FP8_BITS for name in LINEAR for way in (FORWARD, INPUT, WEIGHT)}


@pytest.mark.parametrize("shape", [LlamaShape(), Gpt2Shape(), BertShape()])
def test_the_flops_of_all_products_are_those_of_a_step(shape) -> None:
    assert sum(p.flops * p.layers for p in products(shape)) == flops_per_token(shape)


def test_shares_add_up_to_one() -> None:
    found = recipe(seen())
    assert found is not None
    assert sum(share.flops_share for share in found.shares) == pytest.approx(1)


def test_a_run_with_its_linear_layers_in_fp8_says_so_and_the_share_of_the_rest() -> None:
    found = recipe(seen({**LINEAR_IN_FP8, (QK, FORWARD): 20.0}))
    assert found is not None
    assert (found.lowest, found.largest) == ("FP8", max(found.shares[:2], key=_share).format)
    every = {(row.product, row.format) for row in found.rows if row.product in LINEAR}
    assert every == {(name, "FP8") for name in LINEAR}


def _share(share) -> float:
    return share.flops_share


def test_of_two_repeats_the_narrower_counts() -> None:
    found = recipe(seen(), seen({("up", FORWARD): FP8_BITS}))
    assert found is not None
    assert found.lowest == "FP8"


def test_where_a_repeat_was_not_looked_at_nothing_is_measured_and_it_says_so() -> None:
    found = recipe(seen(), None)
    assert found is not None
    assert found.headline == "not measured"
    assert {row.why for row in found.rows} == {"a repeat was not looked at"}


def test_evidence_of_older_runs_has_no_recipe() -> None:
    assert recipe(None) is None


def test_a_record_with_any_number_of_layers_is_read_at_once() -> None:
    found = recipe(seen(), shape=replace(SHAPE, num_hidden_layers=10**9))
    assert found is not None
    assert {row.why for row in found.rows} == {"more than 10,000 layers"}


def test_what_no_probe_isolates_is_not_measured() -> None:
    found = recipe(seen())
    assert found is not None
    unseen = {(row.product, row.direction) for row in found.rows if row.format is None}
    assert unseen == {(QK, INPUT), (PV, INPUT)}
    state = {row.name: row.value for row in found.state}
    assert (state["norms"], state["softmax"]) == (None, None)


def with_layers(product: str, way: Direction, bits: Mapping[int, float]) -> PairsEvidence:
    """Return honest BF16 evidence in which layers of one product show the ``bits`` of a pair."""
    every = [
        one.model_copy(update={"difference": 2.0 ** -bits[one.layer]})
        if (one.product, one.direction) == (product, way) and one.layer in bits
        else one
        for one in seen(usual=BF16_BITS).seen
    ]
    return PairsEvidence(seen=tuple(every), weights=("bfloat16",))


@pytest.mark.parametrize(
    ("bits", "format_"),
    [
        ({3: 6.55}, None),  # 4.95 explicit bits, in one layer of many
        ({3: 4.6}, "FP8"),  # 3 explicit bits
        (dict.fromkeys(range(SHAPE.num_hidden_layers), 6.55), "FP8"),  # in every layer
    ],
)
def test_one_layer_between_two_formats_is_not_measured(
    bits: Mapping[int, float], format_: str | None
) -> None:
    found = recipe(with_layers(QK, FORWARD, bits))
    assert found is not None
    rows = [row for row in found.rows if (row.product, row.direction) == (QK, FORWARD)]
    formats = {row.format: row.layers for row in rows}
    layers = SHAPE.num_hidden_layers
    assert formats == {format_: len(bits)} | ({"BF16": layers - 1} if len(bits) == 1 else {})
    assert found.lowest == (format_ or "BF16")


def test_attention_under_a_narrow_out_projection_is_not_measured() -> None:
    narrow = {("o", WEIGHT): FP8_BITS, (PV, FORWARD): FP8_BITS}
    found = recipe(seen(narrow))
    assert found is not None
    assert {row.format for row in found.rows if row.product == PV} == {None}


@pytest.mark.parametrize(
    ("bits", "precision", "name"),
    [
        (23, FP32, "FP32"),
        (10, FP32, "TF32"),
        (7, FP32, "BF16"),
        (3, FP32, "FP8"),
        (1, FP32, "FP4"),
        (23, BF16, "BF16"),
        (3, BF16, "FP8"),
        (3, Precision(name="MXFP8", bits=8, dtype="bfloat16"), "MXFP8"),
        (1, Precision(name="NVFP4", bits=4, dtype="bfloat16"), "NVFP4"),
    ],
)
def test_a_format_is_told_by_its_explicit_bits(bits: float, precision, name: str) -> None:
    assert format_of(bits, precision) == name


def test_the_headline_is_in_whole_per_cents_that_add_up_to_a_hundred() -> None:
    found = recipe(seen(LINEAR_IN_FP8))
    assert found is not None
    assert "FP8" in found.headline
    figures = [int(part.split()[0]) for part in found.headline.split(", ") if part[0] != "<"]
    assert sum(figures) in (99, 100)


def test_a_recipe_of_which_nothing_was_measured_says_so_in_two_words() -> None:
    nothing = PrecisionRecipe(
        rows=(),
        shares=(FormatShare(format=None, flops_share=1.0),),
        lowest=None,
        largest=None,
        state=(),
    )
    assert nothing.headline == "not measured"
