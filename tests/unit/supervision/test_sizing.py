"""Which size a run takes: what fits, what ends in time, and what the user is told."""

from __future__ import annotations

from typing import Any

import pytest

from llmb import workloads
from llmb.config import BF16, FP16, FP32, Precision, RunConfig, RunRequest
from llmb.errors import NotEnoughMemoryError, UnavailableError
from llmb.measure import duration
from llmb.records.run_record import Rates
from llmb.supervision import memory, sizing
from llmb.wire.messages import Offer, Terms
from llmb.workloads import LADDER
from tests.unit.builders_runtime import TINY, offer, run_config

WIDE = [f.model_copy(update={"native": False, "products": "FP32"}) for f in (BF16, FP16)]
#: About four cores of an EPYC with avx512_bf16, and two cores of one without it.
NEW = Rates(
    flops_per_second={"bfloat16": 0.70e12, "float32": 0.20e12, "float64": 0.10e12},
    bytes_per_second=30e9,
)
OLD = Rates(flops_per_second={"float32": 0.11e12, "float64": 0.055e12}, bytes_per_second=18e9)
NEW_CPU = offer(precisions=(BF16, FP32, WIDE[1]), available_memory_bytes=24 * 10**9)
OLD_CPU = offer(precisions=(FP32, *WIDE), available_memory_bytes=24 * 10**9)


def settle(config: RunConfig) -> Terms:
    return Terms(environment={}, warmup_steps=1, facts={}, peak=None)


def chosen(
    monkeypatch: pytest.MonkeyPatch, offered: Offer, rates: Rates, **asked: Any
) -> sizing.Sized:
    monkeypatch.setattr(sizing, "_measured", lambda configs, settle: (rates, 2.0))
    return sizing.choose(offered, RunRequest(**{"within_s": 600.0, **asked}), settle)


def faster(rates: Rates, by: float) -> Rates:
    flops = {name: by * rate for name, rate in rates.flops_per_second.items()}
    return Rates(flops_per_second=flops, bytes_per_second=by * rates.bytes_per_second)


def test_a_processor_with_bf16_instructions_takes_the_benchmark_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = chosen(monkeypatch, NEW_CPU, NEW, within_s=900.0)
    assert (sized.config.workload, sized.config.precision.name) == ("llama-1.4b", "BF16")
    assert sized.estimate is not None
    assert sized.estimate.seconds <= 900
    (note,) = sized.notes
    assert note.startswith("llama-1.4b in BF16: about ")
    assert "--workload llama-410m" in note


def test_a_processor_without_takes_the_largest_that_ends_in_time_and_says_what_the_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = chosen(monkeypatch, OLD_CPU, OLD)
    assert sized.config.workload in ("llama-410m", "llama-128m")
    assert sized.config.precision.name == "FP32"
    (note,) = sized.notes
    for words in ("about", "the largest official size that ends within 10 min", "--within"):
        assert words in note
    assert "--workload llama-1.4b would take" in note


def test_more_time_and_a_faster_machine_take_larger_sizes_and_less_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rung(rates: Rates, within_s: float) -> int:
        sized = chosen(monkeypatch, OLD_CPU, rates, within_s=within_s)
        return LADDER.index(sized.config.workload)

    rungs = [rung(OLD, within_s) for within_s in (100.0, 200.0, 600.0, 1800.0, 7200.0)]
    assert rungs == sorted(rungs, reverse=True)
    assert (rungs[0], rungs[-1]) == (3, 0)
    assert rung(faster(OLD, 10.0), 600.0) == 0


def test_where_none_ends_in_time_the_soonest_is_run_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = chosen(monkeypatch, OLD_CPU, faster(OLD, 0.01))
    assert sized.config.workload == "llama-45m"
    assert "none of which ends within 10 min" in sized.notes[0]


@pytest.mark.parametrize("within_s", [1.0, 60.0, 300.0, 600.0, 1200.0, 3600.0])
def test_fp16_without_a_loss_scale_a_debug_run_is_taken_only_if_it_is_named_or_alone(
    monkeypatch: pytest.MonkeyPatch, within_s: float
) -> None:
    def taken(offered: Offer, **asked: Any) -> str:
        sized = chosen(monkeypatch, offered, OLD, within_s=within_s, **asked)
        return sized.config.precision.name

    assert taken(OLD_CPU) != "FP16"
    assert taken(OLD_CPU, precision="FP16") == "FP16"
    assert taken(OLD_CPU.model_copy(update={"precisions": (WIDE[1],)})) == "FP16"


def test_a_format_that_was_asked_for_is_kept_and_memory_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sized = chosen(monkeypatch, OLD_CPU, faster(OLD, 10.0), precision="FP32")
    assert (sized.config.workload, sized.config.precision.name) == ("llama-410m", "FP32")
    little = OLD_CPU.model_copy(update={"available_memory_bytes": 4 * 10**9})
    assert chosen(monkeypatch, little, faster(OLD, 10.0)).config.workload == "llama-128m"
    with pytest.raises(UnavailableError, match="TF32"):
        chosen(monkeypatch, OLD_CPU, OLD, precision="TF32")


def test_where_not_even_the_smallest_fits_that_and_what_it_needs_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = OLD_CPU.model_copy(update={"available_memory_bytes": 10**8})
    with pytest.raises(NotEnoughMemoryError, match="not even llama-45m, which needs"):
        chosen(monkeypatch, tiny, OLD)


def test_an_accelerator_takes_the_largest_that_fits_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sizing, "_measured", lambda *_: pytest.fail("measured"))
    warp = offer(plugin="warp", device="warp:0", available_memory_bytes=80 * 10**9)
    sized = sizing.choose(warp, RunRequest(within_s=600.0), settle)
    assert (sized.config.workload, sized.estimate, sized.notes) == ("llama-1.4b", None, ())
    small = warp.model_copy(update={"available_memory_bytes": 8 * 10**9})
    sized = sizing.choose(small, RunRequest(within_s=600.0), settle)
    assert sized.config.workload == "llama-410m"
    assert "the largest official size that fits into memory" in sized.notes[0]


@pytest.mark.parametrize(
    ("changes", "asked", "can"),
    [
        ({}, {}, True),
        ({"device": "warp:0"}, {}, False),
        ({"mode": "forward"}, {}, False),
        ({"executor": "inductor"}, {}, False),
        ({"shape_overrides": TINY}, {}, False),
        ({"timed_steps": 20}, {}, False),
        ({"dynamic": True}, {}, False),
        ({}, {"batch_size": "auto"}, False),
    ],
)
def test_only_plain_official_training_on_a_processor_is_estimated(
    changes: dict[str, Any], asked: dict[str, Any], can: bool
) -> None:
    assert sizing.can_be_estimated(run_config(**changes), RunRequest(**asked)) is can


@pytest.mark.parametrize(
    ("name", "precision", "flops", "bandwidth", "start_s", "real_s"),
    [
        # Whole runs on two cores of an EPYC (benchmarks/RESULTS.md): as it is, with one thread, and
        # as one with AVX2 alone or without the instructions for BF16.
        ("llama-45m", BF16, {"bfloat16": 0.388e12, "float32": 0.168e12}, 29.2e9, 2.2, 72.0),
        ("llama-128m", BF16, {"bfloat16": 0.323e12, "float32": 0.152e12}, 38.3e9, 1.8, 115.0),
        ("llama-45m", BF16, {"bfloat16": 0.203e12, "float32": 0.091e12}, 29.6e9, 1.9, 75.0),
        ("llama-45m", WIDE[0], {"float32": 0.169e12}, 27.2e9, 1.7, 87.0),
        ("llama-128m", WIDE[0], {"float32": 0.151e12}, 30.9e9, 1.9, 227.0),
        ("llama-45m", FP32, {"float32": 0.092e12, "float64": 0.035e12}, 27.9e9, 2.2, 118.0),
        ("llama-45m", WIDE[0], {"float32": 0.138e12}, 50.9e9, 1.7, 101.0),
        ("llama-410m", BF16, {"bfloat16": 0.379e12, "float32": 0.121e12}, 58.0e9, 2.0, 310.0),
    ],
)
def test_the_estimate_of_a_run_that_was_made_is_within_30_percent_of_its_time(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    precision: Precision,
    flops: dict[str, float],
    bandwidth: float,
    start_s: float,
    real_s: float,
) -> None:
    # They were made before the steps of a run were replayed.
    monkeypatch.setattr(duration, "_replay_s", lambda *_: 0.0)
    rates = Rates(flops_per_second=flops, bytes_per_second=bandwidth)
    config = run_config(workload=name, precision=precision, warmup_steps=1)
    found = duration.estimate_s(workloads.find(name, {}).shape, config, rates, start_s)
    assert 0.7 * real_s < found < 1.3 * real_s


def test_a_batch_and_repeats_take_as_much_longer() -> None:
    shape = workloads.find("llama-128m", {}).shape
    one = duration.estimate_s(shape, run_config(), NEW, 2.0)
    twice = duration.estimate_s(shape, run_config(repeats=2), NEW, 2.0)
    larger = duration.estimate_s(shape, run_config(batch_size=4), NEW, 2.0)
    steps = run_config().warmup_steps + run_config().timed_steps + duration._MORE_STEPS
    assert twice - one > steps * duration.step_s(shape, run_config(), NEW), "each is audited"
    assert twice < 2 * one
    assert 1.5 * one < larger < 4 * one


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (4.4, "4 s"),
        (89.0, "89 s"),
        (95.0, "2 min"),
        (600.0, "10 min"),
        (3600.0, "1 h"),
        (5000.0, "1 h 23 min"),
    ],
)
def test_times_are_said_as_a_person_says_them(seconds: float, words: str) -> None:
    assert sizing.readable(seconds) == words


def test_the_widened_part_of_a_weight_is_what_the_memory_check_counts() -> None:
    from llmb.plugin.builtin.wide import AT_ONCE

    assert memory._WIDENED_AT_ONCE == AT_ONCE
    official = workloads.find("llama-1.4b", {})
    plain, wide = (memory.needed_bytes(official, p, 1) for p in (BF16, WIDE[0]))
    assert 0.1e9 < wide - plain < 0.5e9
    assert memory.needed_bytes(official, FP32, 1) > wide
