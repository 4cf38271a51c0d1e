"""A user's workload file: keys, comments, defaults, and every fault with its line."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from llmb import workloads
from llmb.families import SHAPES
from llmb.reference.shapes import LlamaShape
from llmb.workloads import definition
from tests import schemas


def shape_of(text: str) -> Any:
    return workloads.find("mine", {}, definition.definition_of(definition.entries(text))).shape


@pytest.mark.parametrize("family", SHAPES)
def test_a_written_file_is_read_as_the_familys_own_shape_and_explains_every_key(
    family: str,
) -> None:
    text = definition.template("mine", SHAPES[family]())
    assert shape_of(text) == SHAPES[family]()
    written = json.loads(text)
    keys = ["name", "family", *(field.name for field in fields(SHAPES[family]))]
    for key in keys:
        assert len(written[f"//{key}"]) > 10, key
    assert [key for key in written if key in keys] == keys


def test_a_comment_may_hold_anything_and_changes_no_size() -> None:
    text = '{"//": ["}", {"a": 1}], "family": "llama", "//hidden_size": null, "hidden_size": 64}'
    assert shape_of(text) == LlamaShape(hidden_size=64)


def test_a_key_has_the_line_in_which_it_stands() -> None:
    text = '{"//": ["\\"}\\n",\n\n"}"], "family":\n "llama",\n"hidden_size": 64 , "vocab_size":9}'
    found = [(entry.key, entry.value, entry.line) for entry in definition.entries(text)]
    assert found == [("family", "llama", 3), ("hidden_size", 64, 5), ("vocab_size", 9, 5)]


@pytest.mark.parametrize(
    ("given", "size", "value"),
    [
        ({"family": "llama", "num_attention_heads": 16}, "num_key_value_heads", 16),
        ({"family": "llama", "num_key_value_heads": None}, "num_key_value_heads", 32),
        ({"family": "llama", "num_key_value_heads": 8}, "num_key_value_heads", 8),
        ({"family": "gpt2", "hidden_size": 96}, "intermediate_size", 384),
        ({"family": "gpt2", "max_position_embeddings": 64}, "sequence_length", 64),
        ({"family": "bert", "hidden_size": 96}, "intermediate_size", 3072),
        ({"family": "qwen3", "num_attention_heads": 16}, "num_key_value_heads", 8),
    ],
)
def test_a_size_that_is_left_out_follows_another_size_as_in_transformers(
    given: dict[str, Any], size: str, value: int
) -> None:
    assert getattr(shape_of(json.dumps(given)), size) == value


def told(given: dict[str, Any]) -> list[tuple[str, str]]:
    return [(fault.key, fault.text) for fault in workloads.faults(given)]


def test_every_fault_of_a_key_is_told_with_the_nearest_name_and_the_limit() -> None:
    given = {"family": "bert", "hiden_size": 512, "num_hidden_layers": 0, "dropout": 1}
    given |= {"vocab_size": "many", "layer_norm_eps": 0, "num_attention_heads": 10**30}
    assert told(given) == [
        ("dropout", "dropout is 1: it must be less than 1"),
        ("hiden_size", "'hiden_size' is no size of bert; did you mean hidden_size?"),
        ("layer_norm_eps", "layer_norm_eps is 0: it must be more than 0"),
        ("num_attention_heads", f"num_attention_heads is {10**30}: it must be at most 2147483647"),
        ("num_hidden_layers", "num_hidden_layers is 0: it must be at least 1"),
        ("vocab_size", 'vocab_size is "many": write a whole number'),
    ]


def test_every_misfit_of_sizes_is_told_in_the_words_of_the_file() -> None:
    given = {"family": "llama", "hidden_size": 100, "num_attention_heads": 7, "vocab_size": 9}
    given |= {"num_key_value_heads": 3, "padding_idx": 9}
    heads = "num_attention_heads"
    assert told(given) == [
        (heads, "hidden_size 100 is not divisible by num_attention_heads 7: change one of them"),
        (heads, "num_attention_heads 7 cannot share 3 key-value heads: use a multiple of 3"),
        ("padding_idx", "padding_idx 9 is no token: use less than 9"),
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"family": "gpt22"}, "did you mean gpt2?"),
        ({"model_type": "llama", "hidden_size": 64}, "--from-hf FILE makes a workload file of it"),
        ({"family": "llama", "schema": "llmb.workload/2"}, "write llmb.workload/1"),
        ({"family": "llama", "rope_theta": float("nan")}, "finite number"),
        ({"family": "llama", "hidden_size": True}, "hidden_size is true: write a whole number"),
    ],
)
def test_one_fault_is_told_with_what_to_write(given: dict[str, Any], text: str) -> None:
    (fault,) = workloads.faults(given)
    assert text in fault.text


def test_a_key_that_stands_twice_is_told_with_both_lines() -> None:
    found = definition.entries('{"family": "llama",\n"hidden_size": 64,\n"hidden_size": 96}')
    (fault,) = definition.repeated(found)
    assert (found[-1].line, fault.text) == (3, "'hidden_size' stands in line 2, too")


@pytest.mark.parametrize("text", ["", "[]", "[" * 9999, '{"a": ' + "9" * 9999 + "}", '{"a": 1,}'])
def test_no_text_but_one_json_object_is_read(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        definition.entries(text)


def test_every_key_is_on_the_page_with_its_meaning_and_defaults() -> None:
    page = schemas.KEYS.read_text()
    assert page == schemas.page_of_keys(page), "python -m tests.schemas"
    sizes = {field.name for kind in SHAPES.values() for field in fields(kind)}
    assert {*definition.SIZES} == sizes


@pytest.mark.parametrize("family", SHAPES)
def test_the_published_schema_takes_a_written_file_and_no_unknown_key(family: str) -> None:
    schema = Draft202012Validator(json.loads(schemas.file_of(definition.SCHEMA).read_text()))
    written = json.loads(definition.template("mine", SHAPES[family]()))
    schema.validate(written)
    assert not schema.is_valid({**written, "hiden_size": 64})
    assert not schema.is_valid({**written, "hidden_size": 0})
