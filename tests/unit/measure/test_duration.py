"""The estimate of a run's time, summed up once more from its parts."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from llmb.config import BF16, FP16, FP32, AuditMode, RunConfig
from llmb.measure import duration
from llmb.measure.duration import estimate_s, needed_dtypes, reference_dtype, step_s
from llmb.records.draws import Draws
from llmb.records.run_record import Rates
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import LlamaShape
from llmb.workloads.arithmetic import flops_per_token, parameter_count
from tests.unit.builders_runtime import run_config

SHAPE = LlamaShape(
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    sequence_length=32,
)
WEIGHTS = parameter_count(SHAPE)
#: Products at 2 and 3 GFLOP/s, memory at 1 GB/s, a start of 2 s.
RATES = Rates(
    flops_per_second={"bfloat16": 2e9, "float32": 3e9, "float64": 5e8}, bytes_per_second=1e9
)
START_S = 2.0


def config(**changes: Any) -> RunConfig:
    usual = {"batch_size": 4, "warmup_steps": 3, "timed_steps": 50, "repeats": 2}
    return run_config(**{**usual, **changes})


def flops(sequences: int = 4) -> float:
    return sequences * 32 * flops_per_token(SHAPE)


def pass_s(rate: float = 2e9) -> float:
    moved = 4 * 32 * (3 * 64 * 2200 + 1000 * 60)
    return 1.25 * flops() / rate + moved / 1e9


def test_a_step_is_a_pass_and_what_adamw_moves_of_each_value() -> None:
    assert step_s(SHAPE, config(), RATES) == pytest.approx(pass_s() + WEIGHTS * 2 * 10 / 1e9)
    wide = config(precision=FP32)
    assert step_s(SHAPE, wide, RATES) == pytest.approx(pass_s(3e9) + WEIGHTS * 4 * 10 / 1e9)


def test_widened_weights_move_for_every_part_and_compute_in_the_wider_format() -> None:
    widened = config(precision=BF16.model_copy(update={"products": "FP32"}), accumulate=2)
    more = WEIGHTS * 26 * 2 / 1e9
    assert step_s(SHAPE, widened, RATES) == pytest.approx(
        pass_s(3e9) + more + WEIGHTS * 2 * 10 / 1e9
    )


@pytest.mark.parametrize(
    ("audit", "own", "wide"),
    [
        (AuditMode.FULL, 20 + 2.5 * 2, 3.7),
        (AuditMode.QUICK, 17 + 2.5 * 2, 3.7),
        (AuditMode.OFF, 0, 0),
    ],
)
def test_a_run_is_starts_ceilings_steps_and_the_audits_passes(
    audit: AuditMode, own: float, wide: float
) -> None:
    asked = config(audit=audit)
    audit_s = own * pass_s() + wide * 1.25 * flops() / 3e9
    audit_s += WEIGHTS * 1800 / 1e9 if own else 0
    steps_s = (3 + 50 + 7.5) * step_s(SHAPE, asked, RATES)
    repeat_s = steps_s + audit_s + (steps_s if own else 0)  # all steps are replayed
    expected = 16 * START_S + 12.5 + 2 * repeat_s
    assert estimate_s(SHAPE, asked, RATES, START_S) == pytest.approx(expected)


#: Two minutes with the chance that at most two minutes are drawn, from 45.375 s to 181.5 s; else
#: the drawn time.
SOME_S = (120 * (120 - 45.375) + (181.5**2 - 120**2) / 2) / (181.5 - 45.375)


@pytest.mark.parametrize(
    ("step_s", "replayed_s"), [(1.0, 60.5), (3.0, SOME_S), (10.0, 0.625 * 605)]
)
def test_of_long_steps_a_share_is_replayed(
    monkeypatch: pytest.MonkeyPatch, step_s: float, replayed_s: float
) -> None:
    monkeypatch.setattr(duration, "step_s", lambda *_: step_s)
    found = duration._replay_s(60.5, SHAPE, config(), RATES)
    assert found == pytest.approx(replayed_s)


def test_of_many_ranks_fewer_steps_are_replayed() -> None:
    draws_of = [Draws(f"{n:032x}", OFFICIAL_OPTIMIZER, ledger=True, ranks=64) for n in range(2000)]
    mean = statistics.fmean(max(120.0, 20.0 * one.least_replayed(64)) for one in draws_of)
    assert duration.replay_s(64, 20.0, 64) == pytest.approx(mean, rel=0.05)
    assert duration.replay_s(64, 1.0, 64) == 64  # less than two minutes


def test_no_more_steps_are_replayed_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration, "step_s", lambda *_: 1.0)
    assert duration._replay_s(500.0, SHAPE, config(), RATES) == 80.0


def test_weights_are_looked_at_where_steps_are_not_compared_exactly() -> None:
    exact, alone = (duration._of_weights(SHAPE, config(precision=p)) for p in (BF16, FP16))
    assert alone == exact + 5 * duration._RANK  # the first weights, and four judged steps


def test_steps_that_cannot_be_replayed_take_no_time() -> None:
    assert duration._replay_s(60.0, SHAPE, config(precision=FP16), RATES) == 0.0


def test_large_products_take_their_ceilings_longer() -> None:
    slow = Rates(flops_per_second={"bfloat16": 1e6, "float32": 1e12}, bytes_per_second=1e15)
    asked = config(audit=AuditMode.OFF, repeats=1, accumulate=2)
    steps_s = (3 + 50 + 7.5) * step_s(SHAPE, asked, slow)
    ceilings_s = estimate_s(SHAPE, asked, slow, 0.0) - steps_s
    # Each kind of product once forward and twice backward, five times, before and after.
    kinds = (64 * 64, 64 * 64, 64 * 64, 64 * 64, 64 * 128, 64 * 128, 128 * 64, 64 * 1000)
    tried = {size: kinds.count(size) for size in kinds}
    assert ceilings_s > 12.5
    assert ceilings_s <= 2 * 5 * 3 * 2 * 2 * 32 * sum(k * n for k, n in tried.items()) / 1e6


@pytest.mark.parametrize(("precision", "wide"), [(BF16, "float32"), (FP32, "float64")])
def test_the_reference_is_in_the_wider_format(precision: Any, wide: str) -> None:
    assert reference_dtype(precision) == wide
    assert needed_dtypes(precision) == (precision.dtype, wide)
