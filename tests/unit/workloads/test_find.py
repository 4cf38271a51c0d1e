"""A workload by name, with debug shapes, or a refusal that says which flag to change."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.errors import UsageError
from llmb.reference.qwen3_shape import TiedQwen3Shape
from llmb.reference.shapes import Gpt2Shape, LlamaShape


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


@pytest.mark.parametrize(("heads", "keys"), [(32, 8), (8, 2), (4, 1), (2, 1)])
def test_as_many_query_heads_share_a_key_value_head_as_in_the_workload(
    heads: int, keys: int
) -> None:
    shape = workloads.find("llama-3.1-8b", {"num_attention_heads": heads}).shape
    assert isinstance(shape, LlamaShape)
    assert shape.num_key_value_heads == keys


def test_query_heads_that_cannot_share_theirs_evenly_are_refused() -> None:
    own = {"family": "llama", "num_attention_heads": 16, "num_key_value_heads": 5}
    with pytest.raises(UsageError, match="--num-attention-heads 16 cannot share 5 key-value heads"):
        workloads.find("own", {}, own)


@pytest.mark.parametrize("name", ["gpt2-125m", "nemo-bert-base"])
def test_a_sequence_longer_than_the_positions_of_the_model_is_refused(name: str) -> None:
    most = {"gpt2-125m": 1024, "nemo-bert-base": 2048}[name]
    assert workloads.find(name, {"sequence_length": most}).shape.sequence_length == most
    with pytest.raises(UsageError, match=f"{most + 1} is longer .* use at most {most}"):
        workloads.find(name, {"sequence_length": most + 1})


# -- a user's own ---------------------------------------------------------------------------


def test_a_definition_is_its_family_with_other_sizes() -> None:
    own = workloads.find("mine", {"num_hidden_layers": 2}, {"family": "gpt2", "hidden_size": 96})
    assert own.shape == Gpt2Shape(hidden_size=96, num_hidden_layers=2)
    assert (own.name, own.family, own.document) == ("mine", "gpt2", None)


def test_a_head_of_a_size_of_its_own_keeps_it_when_other_sizes_change() -> None:
    found = workloads.find("qwen3-0.6b", {"hidden_size": 100, "num_attention_heads": 6})
    assert isinstance(found.shape, TiedQwen3Shape)
    assert (found.shape.head_dim, found.shape.num_key_value_heads) == (128, 3)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({}, "family None is none of bert,"),
        ({"family": "mamba"}, "family 'mamba' is none of bert,"),
        ({"family": "llama", "d_model": 64}, "'d_model' is no size of llama .it has vocab_size,"),
        ({"family": "gpt2", "hidden_size": "wide"}, "hidden_size is .wide.: write a whole number"),
        ({"family": "gpt2", "num_hidden_layers": 0}, "num_hidden_layers is 0: it must be at least"),
        ({"family": "llama", "padding_idx": 32000}, "padding_idx 32000 is no token"),
        ({"family": "llama", "hidden_size": 100}, "--hidden-size 100 is not divisible"),
        ({"family": "qwen3", "head_dim": 33}, "head_dim is 33: rotary positions need an even"),
        ({"family": "qwen3", "num_key_value_heads": 5}, "32 cannot share 5 key-value heads"),
    ],
)
def test_a_definition_that_makes_no_model_is_refused(
    definition: dict[str, int | str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        workloads.find("mine", {}, definition)


def test_a_definition_does_not_take_the_name_of_one_of_llmbs_own() -> None:
    with pytest.raises(UsageError, match=r"'llama-1\.4b' is one of llmb's own"):
        workloads.find("llama-1.4b", {}, {"family": "llama", "num_hidden_layers": 1})


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
    for length in (1, 2):
        with pytest.raises(UsageError, match=f"--sequence-length {length} .* use at least 3"):
            workloads.find("llama-1.4b", {"sequence_length": length})
    assert workloads.find("llama-1.4b", {"sequence_length": 3}).shape.sequence_length == 3


def test_of_several_sizes_that_a_family_does_not_have_the_first_by_name_is_told() -> None:
    for order in (("zeta", "alpha"), ("alpha", "zeta")):
        definition = {"family": "llama", **dict.fromkeys(order, 1)}
        with pytest.raises(UsageError, match="'alpha' is no size of llama"):
            workloads.find("mine", {}, definition)
