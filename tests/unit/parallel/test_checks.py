"""What ranks cannot do together is refused before any process starts, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.config import Mode, Parallelism, RunRequest
from llmb.errors import UsageError
from llmb.parallel.checks import check
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape

LLAMA = LlamaShape(num_attention_heads=12, num_key_value_heads=4, hidden_size=48, vocab_size=100)


def checked(
    mesh: dict[str, Any], shape: Shape = LLAMA, mode: Mode = Mode.TRAIN, **asked: Any
) -> None:
    check(RunRequest(parallelism=Parallelism(**mesh), **asked), mode, shape)


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [
        ({}, LLAMA),
        ({"dp_replicate": 3}, LLAMA),
        ({"dp_shard": 5}, Gpt2Shape()),
        ({"tp": 4, "sequence_parallel": True, "loss_parallel": True}, LLAMA),
        ({"tp": 2, "dp_replicate": 2, "dp_shard": 2}, LLAMA),
        ({"dp_replicate": 2}, BertShape()),
        ({"tp": 4}, BertShape()),
    ],
)
def test_what_goes_together_passes(mesh: dict[str, Any], shape: Shape) -> None:
    checked(mesh, shape)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"tp": 5}, "--tp 5 does not divide the 12 attention heads"),
        ({"tp": 3}, "--tp 3 does not divide the 4 key-value heads"),
        ({"dp_replicate": 2, "sequence_parallel": True}, "--sequence-parallel shares work"),
        ({"dp_replicate": 2, "loss_parallel": True}, "--loss-parallel shares work"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(mesh: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked(mesh)


def test_a_sequence_that_does_not_divide_is_refused_where_it_is_shared() -> None:
    odd = LlamaShape(sequence_length=255)
    checked({"tp": 2}, odd)
    with pytest.raises(UsageError, match="does not divide the sequence of 255 tokens"):
        checked({"tp": 2, "sequence_parallel": True}, odd)


def test_models_without_a_plan_are_not_sliced() -> None:
    with pytest.raises(UsageError, match="slices Llama and BERT models, not GPT-2"):
        checked({"tp": 2}, Gpt2Shape())
    with pytest.raises(UsageError, match="--sequence-parallel is for Llama models"):
        checked({"tp": 2, "sequence_parallel": True}, BertShape())
    with pytest.raises(UsageError, match="--loss-parallel is for Llama models"):
        checked({"tp": 2, "loss_parallel": True}, BertShape())
    with pytest.raises(UsageError, match="does not divide the 12 attention heads"):
        checked({"tp": 8}, BertShape())


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batch_size": "auto"}, "searches on one rank"),
        ({"executor": "thunder"}, "--executor thunder runs on one rank"),
    ],
)
def test_what_runs_on_one_rank_alone_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked({"dp_replicate": 2}, **asked)


@pytest.mark.parametrize("mode", [Mode.FORWARD, Mode.GENERATE])
def test_modes_without_gradients_run_on_one_rank(mode: Mode) -> None:
    with pytest.raises(UsageError, match=f"--mode {mode.value} runs on one rank"):
        checked({"dp_replicate": 2}, mode=mode)


def test_a_compiled_model_is_replicated_or_sharded_and_not_sliced() -> None:
    checked({"dp_replicate": 2}, executor="inductor")
    checked({"dp_shard": 2}, executor="inductor")
    with pytest.raises(UsageError, match="--tp 2 runs with --executor eager"):
        checked({"dp_shard": 2, "tp": 2}, executor="inductor")
