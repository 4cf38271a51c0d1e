"""The measured precision recipe of real runs whose truth is known: one kind of product in FP8."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import narrow_product
from tests.e2e import harness
from tests.narrow_product import KINDS, MIX, PROJECTIONS, SCORES

RUN = ("--batch-size=1", "--timed-steps=20")
SHAPES = (
    "--hidden-size=192",
    "--intermediate-size=128",
    "--num-hidden-layers=2",
    "--num-attention-heads=6",
    "--sequence-length=32",
    *RUN,
)
#: Of other families: sizes that differ, and a kind of product.
OTHERS = {
    "grouped": (
        {"family": "llama", "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
        | {"num_hidden_layers": 4},
        "k",
    ),
    "ungated": ({"family": "llama-ungated", "num_key_value_heads": 6}, "down"),
    "gpt2": ({"family": "gpt2", "hidden_size": 384}, "attn.c_attn"),
    "bert": ({"family": "bert", "hidden_size": 384}, "transform.dense"),
}
SIZES = {
    "vocab_size": 640,
    "hidden_size": 192,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "sequence_length": 32,
}
HOOK = """
@hookimpl
def llmb_post_process_model(model):
    return narrow(model, {kinds!r})
"""


def recipe(tmp_path: Path, *kinds: str, sizes: Sequence[str] = SHAPES) -> dict:
    text = Path(narrow_product.__file__).read_text() + HOOK.format(kinds=kinds)
    folder = harness.plugin(tmp_path / "plugins", "odd", text)
    fixed = ("--plugin=odd", "--device=cpu", "--precision=FP32", *sizes, *harness.SAME)
    ended = harness.run(tmp_path / "out", *fixed, plugins=[folder])
    return ended.record["precision_recipe"]


def formats(found: dict) -> dict[tuple[str, str], set[str | None]]:
    shown: dict[tuple[str, str], set[str | None]] = {}
    for row in found["rows"]:
        shown.setdefault((row["product"], row["direction"]), set()).add(row["format"])
    return shown


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.quick) if k == "up" else k for k in KINDS]
)
def test_a_run_with_one_kind_of_product_in_fp8_is_told_which_and_all_others_are_fp32(
    tmp_path: Path, kind: str
) -> None:
    shown = formats(recipe(tmp_path, kind))
    for (product, direction), found in shown.items():
        if product in (SCORES, MIX) and direction != "forward":
            assert found == {None}, (product, direction)
        elif (kind, product) == ("o", MIX):  # it is looked at through o's weight gradient
            assert found == {None}
        else:
            assert found == {"FP8" if product == kind else "FP32"}, (product, direction)


@pytest.mark.parametrize(
    "family",
    [pytest.param(f, marks=pytest.mark.quick) if f == "gpt2" else f for f in OTHERS],
)
def test_other_families_are_told_which_kind_of_product_is_in_fp8(
    tmp_path: Path, family: str
) -> None:
    sizes, kind = OTHERS[family]
    file = tmp_path / "sizes.json"
    file.write_text(json.dumps({"name": family, **SIZES, **sizes}))
    found = recipe(tmp_path, kind, sizes=(f"--workload={file}", *RUN))
    for (product, direction), names in formats(found).items():
        if product in (SCORES, MIX) and direction != "forward":
            assert names == {None}, (product, direction)
        else:  # with few key/value heads, other layers show it
            expected = "FP8" if product == kind else "FP32"
            assert names - {None} == {expected}, (product, direction)


def test_all_projections_in_fp8_hide_none_of_each_other_and_the_head_stays_fp32(
    tmp_path: Path,
) -> None:
    found = recipe(tmp_path, *PROJECTIONS[:-1])
    shown = formats(found)
    assert all(shown[kind, way] == {"FP8"} for kind, way in shown if kind in PROJECTIONS[:-1])
    assert {tuple(shown["head", way]) for kind, way in shown if kind == "head"} == {("FP32",)}
    assert found["lowest"] == "FP8"
