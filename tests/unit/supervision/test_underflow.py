"""Which batch size FP16 without a loss scale is tried at, and what is said beyond it."""

from __future__ import annotations

import pytest

from llmb import workloads
from llmb.config import BF16, FP16, FP32, Mode, Parallelism, Precision, RunConfig
from llmb.supervision import underflow
from tests.unit.builders_runtime import run_config

OFFICIAL = workloads.find("llama-1.4b", {})
SCALED = FP16.model_copy(update={"master_weights": True})


def config(batch_size: int = 1, precision: Precision = FP16, **changes: object) -> RunConfig:
    return run_config(precision=precision).model_copy(update={"batch_size": batch_size, **changes})


def test_at_256_tokens_a_sequence_the_most_is_64_sequences() -> None:
    assert 64 * OFFICIAL.shape.sequence_length == underflow.MOST_TOKENS
    assert underflow.most_sequences(config(), OFFICIAL) == 64


@pytest.mark.parametrize("batch_size", [1, 64])
def test_up_to_the_most_nothing_is_said(batch_size: int) -> None:
    assert underflow.warnings(config(batch_size), OFFICIAL) == ()


def test_one_sequence_more_is_told_with_its_tokens_and_what_to_use_instead() -> None:
    (said,) = underflow.warnings(config(65), OFFICIAL)
    assert said.startswith("16,640 tokens a step in FP16 without a loss scale")
    assert "--batch-size 64 or less" in said
    assert "--mixed-precision" in said


@pytest.mark.parametrize(
    ("precision", "mode"),
    [(SCALED, Mode.TRAIN), (BF16, Mode.TRAIN), (FP32, Mode.TRAIN), (FP16, Mode.FORWARD)],
)
def test_where_nothing_underflows_there_is_no_most(precision: Precision, mode: Mode) -> None:
    run = config(4096, precision, mode=mode)
    assert underflow.most_sequences(run, OFFICIAL) is None
    assert (underflow.warnings(run, OFFICIAL), underflow.cap(run, OFFICIAL)) == ((), None)


def test_the_tokens_of_all_ranks_count_and_parts_of_a_step_do_not_help() -> None:
    ranks = Parallelism(dp_replicate=4)
    assert underflow.most_sequences(config(parallelism=ranks), OFFICIAL) == 16
    assert not underflow.warnings(config(16, parallelism=ranks), OFFICIAL)
    assert underflow.warnings(config(17, parallelism=ranks), OFFICIAL)
    assert underflow.warnings(config(128, accumulate=128), OFFICIAL)


def test_a_sequence_longer_than_the_most_is_only_offered_a_scaled_loss() -> None:
    long = workloads.find("llama-1.4b", {"sequence_length": 2 * underflow.MOST_TOKENS})
    (said,) = underflow.warnings(config(), long)
    assert "--batch-size" not in said


def test_the_end_of_a_search_is_told_before_it_begins() -> None:
    assert "no batch size above 64 is tried" in (underflow.cap(config(), OFFICIAL) or "")
    assert "no batch size above 96 is tried" in (
        underflow.cap(config(accumulate=96), OFFICIAL) or ""
    )
