"""The values a run is asked for and resolved to: immutable, closed and checked at the door."""

from __future__ import annotations

import os

import pytest
from pydantic import ValidationError

from llmb import config
from llmb.config import BF16, FP16, FP32, TF32, Mode, Parallelism, Precision, RunConfig, RunRequest
from tests.unit.builders_runtime import run_config


def test_a_request_without_options_is_the_official_run_with_everything_else_left_open() -> None:
    request = RunRequest()
    assert (request.workload, request.repeats) == ("llama-1.4b", 1)
    open_ = ("mode", "plugin", "device", "precision", "batch_size", "seed", "warmup_steps")
    assert [getattr(request, name) for name in open_] == [None] * 7
    assert request.timed_steps is None, "as many as an official run of the mode has"
    assert [mode.official_steps for mode in Mode] == [50, 10, 10]


@pytest.mark.parametrize("value", [RunRequest(), run_config(), BF16, Parallelism()])
def test_no_field_of_a_value_can_be_changed(value: config.Frozen) -> None:
    for name in type(value).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(value, name, getattr(value, name))


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 0},
        {"batch_size": -3},
        {"batch_size": "many"},
        {"seed": -1},
        {"seed": 2**63},
        {"warmup_steps": 0},
        {"timed_steps": 0},
        {"repeats": 0},
        {"mode": "dream"},
        {"shape_overrides": {"vocab_size": 100}},
        {"shape_overrides": {"hidden_size": "wide"}},
        {"colour": "blue"},
    ],
    ids=str,
)
def test_a_request_that_cannot_mean_anything_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RunRequest(**changes)


@pytest.mark.parametrize("size", [1, 4096, "auto", None])
def test_a_batch_size_is_a_positive_number_or_auto_or_left_open(size: object) -> None:
    assert RunRequest(batch_size=size).batch_size == size


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 0},
        {"batch_size": "auto"},
        {"batch_size": None},
        {"seed": None},
        {"seed": 2**63},
        {"warmup_steps": 0},
        {"timed_steps": 0},
        {"repeats": 0},
        {"parallelism": {"tp": 0}},
        {"parallelism": {"ep": 2}},
    ],
    ids=str,
)
def test_a_resolved_run_leaves_nothing_open_and_takes_nothing_impossible(
    changes: dict[str, object],
) -> None:
    with pytest.raises(ValidationError):
        run_config(**changes)


def test_the_largest_seed_is_one_less_than_two_to_the_63() -> None:
    assert run_config(seed=2**63 - 1).seed == 2**63 - 1


def test_a_resolved_run_survives_its_own_json() -> None:
    given = run_config(shape_overrides={"hidden_size": 64}, plugin_options={"a": True, "b": 1.5})
    again = RunConfig.model_validate_json(given.model_dump_json())
    assert again == given
    assert again.plugin_options["a"] is True


def test_numbers_that_are_not_finite_are_refused_in_every_value() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValidationError):
            run_config(plugin_options={"scale": value})


@pytest.mark.parametrize(
    ("precision", "stored", "size"),
    [
        (FP32, "float32", 4),
        (TF32, "float32", 4),
        (FP16, "float16", 2),
        (BF16, "bfloat16", 2),
        (BF16.model_copy(update={"master_weights": True}), "float32", 4),
        (Precision(name="FP64", bits=64, dtype="float64"), "float64", 8),
    ],
    ids=str,
)
def test_weights_are_stored_in_the_format_or_in_float32_masters(
    precision: Precision, stored: str, size: int
) -> None:
    assert precision.stored_dtype == stored
    assert precision.bytes_per_value == size


def test_a_precision_has_at_least_one_bit() -> None:
    with pytest.raises(ValidationError):
        Precision(name="FP0", bits=0, dtype="float32")


def test_the_common_formats_have_their_known_number_of_bits() -> None:
    assert [p.bits for p in (FP32, TF32, FP16, BF16)] == [32, 19, 16, 16]


def test_a_device_takes_a_part_of_its_batch_at_once_and_replicas_share_a_step() -> None:
    config = run_config(batch_size=12, accumulate=3, parallelism={"dp_replicate": 2, "dp_shard": 5})
    assert (config.micro_batch_size, config.global_batch_size, config.parts) == (4, 120, 3)
    stages = run_config(batch_size=12, accumulate=3, parallelism={"pp": 2})
    assert (stages.micro_batch_size, stages.parts) == (4, 1)


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("1F1B", [0, 1, 0, 1]), ("ZBVZeroBubble", [0, 1, 1, 0])]
)
def test_a_pipelines_stages_go_round_its_ranks_or_there_and_back(
    schedule: str, ranks: list[int]
) -> None:
    mesh = Parallelism(pp=2, schedule=schedule)
    assert [mesh.rank_of(stage) for stage in range(4)] == ranks


@pytest.mark.parametrize(("rank", "leads"), [(0, True), (1, False)])
def test_rank_0_leads_and_no_other(rank: int, leads: bool) -> None:
    place = config.RankAddress(
        rank=rank, world_size=2, local_rank=rank, local_world_size=2, host="localhost", port=1
    )
    assert place.leads is leads


def test_world_size_is_the_product_of_all_four_dimensions() -> None:
    assert Parallelism().world_size == 1
    assert Parallelism(dp_replicate=2, dp_shard=3, tp=5, pp=7).world_size == 210


def test_numpy_may_be_imported_with_one_thread_and_the_variable_is_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for before in (None, "4"):
        if before is None:
            monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OPENBLAS_NUM_THREADS", before)
        with config.one_blas_thread():
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
        assert os.environ.get("OPENBLAS_NUM_THREADS") == before


@pytest.mark.parametrize("before", [None, "1"])
def test_torch_imports_no_vendors_package_while_it_is_alone(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    name = "TORCH_DEVICE_BACKEND_AUTOLOAD"
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    with config.torch_alone():
        assert os.environ[name] == "0"
    assert os.environ.get(name) == before


def test_the_environment_handed_out_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLMB_TEST_ONLY", raising=False)
    config.environment()["LLMB_TEST_ONLY"] = "1"
    assert "LLMB_TEST_ONLY" not in os.environ


def test_child_processes_may_be_let_wait_idly_and_later_ones_wait_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    with config.idle_waiting():
        assert config.environment()["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_WAIT_POLICY" not in config.environment()


def test_what_the_user_says_of_waiting_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    with config.idle_waiting():
        assert config.environment()["OMP_WAIT_POLICY"] == "active"
    assert config.environment()["OMP_WAIT_POLICY"] == "active"


def test_a_format_says_in_what_its_products_are_computed_and_whether_that_is_slow() -> None:
    native, slow = BF16, BF16.model_copy(update={"native": False})
    wide = slow.model_copy(update={"products": "FP32"})
    assert [one.is_slow for one in (native, slow, wide)] == [False, True, False]
    assert [one.computing.name for one in (native, slow, wide)] == ["BF16", "FP32", "FP32"]
    assert [one.described for one in (native, wide)] == ["BF16", "BF16 (products in FP32)"]
