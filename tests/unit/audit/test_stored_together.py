"""Rule G1: which parameters of the model may be stored in one parameter."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from llmb.audit.stored_together import mixed, starved

LAYER = "model.layers.{}.{}"
MATRICES = (
    *(f"self_attn.{kind}_proj.weight" for kind in "qkvo"),
    *(f"mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")),
)
SHAPES: dict[str, Sequence[int]] = {
    "model.embed_tokens.weight": (16, 4),
    **{LAYER.format(i, name): (4, 4) for i in range(2) for name in MATRICES},
    **{LAYER.format(i, "self_attn.q_proj.bias"): (4,) for i in range(2)},
    **{LAYER.format(i, "input_layernorm.weight"): (4,) for i in range(2)},
    "lm_head.weight": (16, 4),
}


def place(name: str) -> int:
    names = [*SHAPES]
    return sum(math.prod(SHAPES[one]) for one in names[: names.index(name)])


def told(*names: str, one_layer: bool = False) -> str | None:
    """Return the fault of a model with an element of each of ``names`` in a parameter ``flat``."""
    counts = [1, len(names) + 1]
    row = [place("lm_head.weight"), *map(place, names), -1]
    return mixed(["head", "flat"], counts, [*row, *row], SHAPES, one_layer=one_layer)


def of(layer: int, *kinds: str) -> list[str]:
    return [LAYER.format(layer, one) for one in kinds]


QKV = [f"self_attn.{kind}_proj.weight" for kind in "qkv"]
GATE_UP = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
NORM, BIAS = "input_layernorm.weight", "self_attn.q_proj.bias"


@pytest.mark.parametrize("one_layer", [False, True])
@pytest.mark.parametrize(
    "names",
    [
        of(0, *QKV),
        of(1, *GATE_UP),
        of(0, "mlp.down_proj.weight"),
        [*of(0, NORM), *of(1, NORM), *of(1, BIAS)],  # vectors alone
        of(0, "self_attn.q_proj.weight", BIAS),
        [],  # padding
    ],
)
def test_what_one_kernel_computes_may_be_stored_together(names: list[str], one_layer: bool) -> None:
    assert told(*names, one_layer=one_layer) is None


@pytest.mark.parametrize("kinds", [["mlp.down_proj.weight"], QKV, GATE_UP])
def test_one_kind_of_all_layers_may_be_a_stack_unless_directions_are_compared(
    kinds: list[str],
) -> None:
    names = [*of(0, *kinds), *of(1, *kinds)]
    assert told(*names) is None
    found = told(*names, one_layer=True)
    assert found is not None
    assert found.startswith("flat holds model.layers.0.")


@pytest.mark.parametrize(
    "names",
    [
        of(0, "self_attn.v_proj.weight", "self_attn.o_proj.weight"),
        of(0, "mlp.up_proj.weight", "mlp.down_proj.weight"),
        of(0, "self_attn.q_proj.weight", "mlp.gate_proj.weight"),
        ["model.embed_tokens.weight", "lm_head.weight"],
        of(0, "mlp.down_proj.weight", NORM),
    ],
)
def test_other_parameters_are_stored_apart(names: list[str]) -> None:
    found = told(*names)
    assert found is not None
    assert all(name in found for name in ("flat", *names))


def test_a_place_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the model's"):
        mixed(["flat"], [1], [10_000], SHAPES, one_layer=False)


def padded(share: float, rows: int) -> str | None:
    """Return the fault of 8 elements of ``plain`` and of ``flat``, with a ``share`` of padding."""
    padding = round(share * 8)
    shapes = {"first": (8,), "second": (8,)}
    where = [*range(16 - padding), *[-1] * padding] * rows
    return starved(["plain", "flat"], [8, 8], where, shapes)


def test_a_parameter_may_be_padded_to_twice_its_size() -> None:
    assert padded(0.0, 40) is None
    assert padded(0.5, 40) is None
    assert padded(0.75, 40) == (
        "75% of flat is padding, and few elements of the model are read there: pad a parameter to "
        "twice its size at most"
    )


def test_a_thousandth_of_the_model_may_lie_in_more_padding() -> None:
    """A kernel pads a head of two rows to 16 rows."""
    shapes = {"matrix": (1000, 16), "head": (16,)}
    where = [*range(8), 16_000, *[-1] * 7] * 40
    assert starved(["matrix", "head"], [8, 8], where, shapes) is None
    shapes["matrix"] = (500, 16)
    where = [*range(8), 8_000, *[-1] * 7] * 40
    assert starved(["matrix", "head"], [8, 8], where, shapes) is not None
    nowhere = [*range(8), *[-1] * 8] * 40
    assert starved(["matrix", "head"], [8, 8], nowhere, shapes) is not None


def test_in_few_steps_half_of_a_parameter_may_have_been_read() -> None:
    assert padded(0.75, 10) is None
    assert padded(0.875, 10) is not None
    assert padded(1.0, 1) is None


def test_a_model_may_be_stored_in_few_more_parameters_than_it_has() -> None:
    for pieces, fails in ((62, False), (63, True)):
        shapes = {f"q{n}": (4,) for n in range(20)}
        found = starved([f"p{n}" for n in range(pieces)], [1] * pieces, [*range(pieces)], shapes)
        assert (found is not None) is fails
    assert found is not None
    assert "20 parameters are stored in 63" in found
    assert "store 62 at most" in found
