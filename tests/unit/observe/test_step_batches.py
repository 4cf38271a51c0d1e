"""Tokens of a step follow from its seed: random ones, those of files, or of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llmb.config import Parallelism
from llmb.inputs.contents import describe
from llmb.inputs.tokens import open_tokens
from llmb.observe.step_batches import StepBatches
from llmb.reference.data import random_tokens
from llmb.reference.lengths import draw_lengths
from llmb.reference.shapes import LlamaShape
from tests.unit.builders_inputs import write_pair
from tests.unit.builders_runtime import run_config

SHAPE = LlamaShape(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    sequence_length=32,
)


def batches(**changes: Any) -> StepBatches:
    return StepBatches(run_config(batch_size=2, **changes), SHAPE)


@pytest.fixture
def data(tmp_path: Path) -> Any:
    write_pair(tmp_path / "x", [list(range(49))] * 3)
    return describe(str(tmp_path / "x"), None)


def test_random_tokens_are_those_of_the_seed_for_all_replicas_together() -> None:
    mesh = Parallelism(dp_replicate=2, dp_shard=2, tp=2)
    made = batches(parallelism=mesh).make(5).ids
    assert torch.equal(made, random_tokens(5, 8, 32, 50))
    assert not torch.equal(made, batches(parallelism=mesh).make(6).ids)


def test_tokens_of_files_are_those_of_the_seed(data: Any) -> None:
    source = open_tokens(data, 50, 32)
    made = batches(data=data, parallelism=Parallelism(dp_shard=2)).make(5).ids
    assert torch.equal(made, torch.from_numpy(source.sequences(5, 4, 32)))


def test_lengths_are_drawn_where_they_differ_and_there_alone() -> None:
    assert batches().lengths(5) is None
    mesh = Parallelism(dp_shard=2)
    drawn = batches(dynamic=True, parallelism=mesh)
    assert drawn.lengths(5) == draw_lengths(5, 4, 32)
    assert drawn.make(5).ids.shape == (4, max(draw_lengths(5, 4, 32)))


def test_a_prompt_is_random_of_the_seed_for_one_devices_sequences() -> None:
    made = batches(prompt_length=6, new_tokens=4).prompt(5)
    assert torch.equal(made, random_tokens(5, 2, 6, 50))


def test_a_prompt_that_is_given_is_that_of_every_sequence() -> None:
    made = batches(prompt_length=3, new_tokens=4, prompt_tokens=(7, 8, 9)).prompt(5)
    assert made.tolist() == [[7, 8, 9], [7, 8, 9]]


def test_a_prompt_of_files_is_the_beginning_of_what_they_give(data: Any) -> None:
    source = open_tokens(data, 50, 32)
    made = batches(data=data, prompt_length=6, new_tokens=4).prompt(5)
    assert torch.equal(made, torch.from_numpy(source.sequences(5, 2, 6)))
