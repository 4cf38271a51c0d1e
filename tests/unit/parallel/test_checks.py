"""What ranks cannot do together is refused before any process starts, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.config import BF16, FP16, FP32, SPLITS_BACKWARD, Mode, Parallelism, RunConfig, RunRequest
from llmb.errors import UsageError
from llmb.parallel.checks import check, check_precision
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
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
        ({"pp": 2, "schedule": "GPipe"}, LLAMA),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 2, "tp": 2, "schedule": "LoopedBFS"}, LLAMA),
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
    checked({"tp": 2, "sequence_parallel": True, "loss_parallel": True}, Gpt2Shape())
    with pytest.raises(UsageError, match="--sequence-parallel is not for BERT models"):
        checked({"tp": 2, "sequence_parallel": True}, BertShape())
    with pytest.raises(UsageError, match="--loss-parallel is not for BERT models"):
        checked({"tp": 2, "loss_parallel": True}, BertShape())
    with pytest.raises(UsageError, match="does not divide the 12 attention heads"):
        checked({"tp": 8}, BertShape())


def test_a_search_for_a_batch_size_runs_on_one_rank_alone() -> None:
    with pytest.raises(UsageError, match="searches on one rank"):
        checked({"dp_replicate": 2}, batch_size="auto")


@pytest.mark.parametrize(
    ("mesh", "shape", "message"),
    [
        ({"tp": 2}, LlamaShape(), "--tp 2 runs with --executor eager"),
        ({"pp": 2}, LlamaShape(), "--pp 2 runs with --executor eager"),
        ({"dp_replicate": 2, "dp_shard": 2}, LlamaShape(), "replicates or shards, and not both"),
        ({"dp_shard": 2}, BertShape(), "does not shard models with dropout"),
    ],
)
def test_what_thunder_cannot_share_is_refused(
    mesh: dict[str, Any], shape: Shape, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        checked(mesh, shape, executor="thunder")


def test_thunder_replicates_any_model_and_shards_one_without_dropout() -> None:
    checked({"dp_replicate": 2}, BertShape(), executor="thunder")
    checked({"dp_shard": 2}, executor="thunder")


@pytest.mark.parametrize("mode", [Mode.FORWARD, Mode.GENERATE])
def test_modes_without_gradients_run_on_one_rank(mode: Mode) -> None:
    with pytest.raises(UsageError, match=f"--mode {mode.value} runs on one rank"):
        checked({"dp_replicate": 2}, mode=mode)


def test_a_compiled_model_is_replicated_or_sharded_and_not_sliced() -> None:
    checked({"dp_replicate": 2}, executor="inductor")
    checked({"dp_shard": 2}, executor="inductor")
    with pytest.raises(UsageError, match="--tp 2 runs with --executor eager"):
        checked({"dp_shard": 2, "tp": 2}, executor="inductor")


@pytest.mark.parametrize(
    ("schedule", "fewest", "refused"),
    [
        ("GPipe", 1, None),
        ("1F1B", 4, 3),
        ("Interleaved1F1B", 4, 6),
        ("LoopedBFS", 1, None),
        ("InterleavedZeroBubble", 8, 7),
        ("ZBVZeroBubble", 1, None),
        ("DualPipeV", 8, 7),
    ],
)
def test_each_schedule_has_its_own_needs_of_micro_batches(
    schedule: Any, fewest: int, refused: int | None
) -> None:
    mesh = {"pp": 4, "schedule": schedule}
    checked(mesh, accumulate=fewest)
    if refused is not None:
        with pytest.raises(UsageError, match=f"--schedule {schedule} takes .* {refused}"):
            checked(mesh, accumulate=refused)


@pytest.mark.parametrize(
    ("mesh", "asked", "message"),
    [
        ({"pp": 13}, {"accumulate": 13}, "makes 13 stages, and the model has 12 layers"),
        (
            {"pp": 8, "schedule": "ZBVZeroBubble"},
            {"accumulate": 16},
            "--pp 8 --schedule ZBVZeroBubble makes 16 stages",
        ),
        ({"pp": 2}, {"executor": "inductor", "accumulate": 2}, "--pp 2 runs with --executor eager"),
        ({"pp": 2}, {"mixed_precision": True, "accumulate": 2}, "without --mixed-precision"),
        ({"pp": 2}, {"dynamic": True, "accumulate": 2}, "without --dynamic"),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused(
    mesh: dict[str, Any], asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        checked(mesh, **asked)


@pytest.mark.parametrize(
    ("shape", "name"),
    [(Gpt2Shape(), "GPT-2"), (BertShape(), "BERT"), (TiedQwen3Shape(), "Qwen3 with a tied head")],
)
def test_models_with_a_tied_head_are_not_cut(shape: Shape, name: str) -> None:
    with pytest.raises(UsageError, match=f"--pp 2 cuts no {name} models into stages: use"):
        checked({"pp": 2}, shape, accumulate=2)


def test_qwen3_with_a_head_of_its_own_is_cut_and_sliced() -> None:
    checked({"pp": 2, "tp": 2, "sequence_parallel": True}, Qwen3Shape(), accumulate=2)


@pytest.mark.parametrize("schedule", sorted(SPLITS_BACKWARD))
def test_a_backward_pass_in_two_parts_does_not_go_with_parameters_given_back(schedule: Any) -> None:
    mesh = {"pp": 2, "dp_shard": 2, "schedule": schedule}
    with pytest.raises(UsageError, match="add --zero 2"):
        checked(mesh, accumulate=4)
    checked({**mesh, "reshard_after_forward": False}, accumulate=4)
    checked({"pp": 2, "schedule": schedule}, accumulate=4, sac_freq="1/2")
    with pytest.raises(UsageError, match="--sac-freq op can do that once"):
        checked({"pp": 2, "schedule": schedule}, accumulate=4, sac_freq="op")


def chosen(**more: Any) -> RunConfig:
    return RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin="cpu",
        plugin_options={},
        device="cpu",
        batch_size=2,
        accumulate=2,
        seed=1,
        warmup_steps=1,
        timed_steps=1,
        repeats=1,
        **{"parallelism": Parallelism(pp=2), "precision": FP32, **more},
    )


def test_a_pipeline_scales_no_loss_whatever_was_chosen_for_it() -> None:
    check_precision(chosen(), LLAMA)
    check_precision(chosen(precision=FP16, parallelism=Parallelism()), LLAMA)
    with pytest.raises(UsageError, match="--pp 2 does not run in FP16"):
        check_precision(chosen(precision=FP16), LLAMA)
    with pytest.raises(UsageError, match="add --no-mixed-precision"):
        check_precision(chosen(mixed_precision=True), LLAMA)


def test_slices_of_gpt2_have_weights_in_float32() -> None:
    sliced = {"parallelism": Parallelism(tp=2)}
    check_precision(chosen(**sliced), Gpt2Shape())
    check_precision(chosen(**sliced, precision=BF16, mixed_precision=True), Gpt2Shape())
    check_precision(chosen(**sliced, precision=BF16), LLAMA)
    check_precision(chosen(precision=BF16, parallelism=Parallelism(dp_shard=2)), Gpt2Shape())
    with pytest.raises(UsageError, match="--tp 2 slices GPT-2 with weights in float32"):
        check_precision(chosen(**sliced, precision=BF16), Gpt2Shape())
