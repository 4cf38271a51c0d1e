"""A workload by name, with debug shapes, or a refusal that says which flag to change."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.errors import UsageError
from llmb.reference.shapes import LlamaShape


def test_the_official_workload_is_the_reference_shape_unchanged() -> None:
    found = workloads.find("llama-1.4b", {})
    assert found.shape == LlamaShape()
    assert found.tokens_per_step(3) == 768


@pytest.mark.parametrize(
    "field",
    [
        "sequence_length",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    ],
)
def test_each_shape_flag_changes_its_field_and_no_other(field: str) -> None:
    changed = workloads.find("llama-1.4b", {field: 64}).shape
    follows = {"num_key_value_heads"} if field == "num_attention_heads" else set()
    differing = {f for f in vars(changed) if getattr(changed, f) != getattr(LlamaShape(), f)}
    assert getattr(changed, field) == 64
    assert differing == {field} | follows


def test_key_value_heads_follow_the_query_heads_as_the_workload_has_no_groups() -> None:
    shape = workloads.find("llama-1.4b", {"num_attention_heads": 8}).shape
    assert shape.num_key_value_heads == 8


def test_overrides_do_not_stick_to_the_named_workload() -> None:
    workloads.find("llama-1.4b", {"hidden_size": 64})
    assert workloads.find("llama-1.4b", {}).shape.hidden_size == 3200


def test_an_unknown_workload_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'gpt-9'.*llama-1\.4b"):
        workloads.find("gpt-9", {})


@pytest.mark.parametrize("value", [0, -1])
def test_a_shape_below_one_is_refused_by_the_name_of_its_flag(value: int) -> None:
    with pytest.raises(UsageError, match=f"--hidden-size is {value}: it must be at least 1"):
        workloads.find("llama-1.4b", {"hidden_size": value})


def test_a_width_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--hidden-size 3200 .*--num-attention-heads 7"):
        workloads.find("llama-1.4b", {"num_attention_heads": 7})


def test_heads_of_odd_size_are_refused_as_rotary_positions_need_pairs() -> None:
    with pytest.raises(UsageError, match="heads of 3: rotary"):
        workloads.find("llama-1.4b", {"hidden_size": 12, "num_attention_heads": 4})


def test_a_sequence_of_one_token_is_refused_as_nothing_is_left_to_predict() -> None:
    with pytest.raises(UsageError, match="--sequence-length 1"):
        workloads.find("llama-1.4b", {"sequence_length": 1})
    assert workloads.find("llama-1.4b", {"sequence_length": 2}).shape.sequence_length == 2
