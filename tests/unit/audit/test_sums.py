"""Sums of micro-batches in 16 bits round alike in every honest run, and widen no limit by half."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from llmb.audit.bench import Bench
from llmb.audit.sums import RoundedSums
from llmb.config import BF16, FP16, FP32, Precision
from tests.unit.builders_audit import audit_config, facts


def measured(count: int, dtype: torch.dtype, *, alike: float) -> float:
    """Return the relative error of a sum of ``count`` gradients of 4,096 elements, in ``dtype``."""
    torch.manual_seed(0)
    same = torch.randn(4096)
    right, found = torch.zeros(4096, dtype=torch.float64), torch.zeros(4096, dtype=dtype)
    for _ in range(count):
        one = (alike * same + (1 - alike) * torch.randn(4096)).to(dtype)
        right += one.double()
        found += one
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize(("dtype", "precision"), [(torch.bfloat16, BF16), (torch.float16, FP16)])
@pytest.mark.parametrize("count", [8, 64, 256])
def test_no_sum_is_more_exact_than_its_least_error(
    count: int, dtype: torch.dtype, precision: Precision
) -> None:
    least = RoundedSums(count, precision).error
    for alike in (0.0, 0.3, 0.5):
        assert 0.97 < measured(count, dtype, alike=alike) / least < 1.5


def test_without_sums_in_16_bits_no_limit_changes() -> None:
    mixed = BF16.model_copy(update={"master_weights": True})
    for sums in (RoundedSums(1, BF16), RoundedSums(256, FP32), RoundedSums(256, mixed)):
        assert sums.error == 0
        assert sums.times(1.5, 0.01) == 1.5


def test_the_part_of_the_error_that_is_from_sums_counts_once() -> None:
    sums, own = RoundedSums(64, BF16), 0.006
    honest = math.hypot(own, sums.error)
    allowed = sums.times(1.5, honest) * honest
    assert allowed == pytest.approx(math.hypot(1.5 * own, sums.error))
    # Two runs have sums of their own.
    apart = sums.times(3.0, honest, runs=2) * honest
    assert apart == pytest.approx(math.hypot(3 * own, math.sqrt(2) * sums.error))


def test_a_limit_is_never_as_small_as_the_honest_error() -> None:
    sums = RoundedSums(10_000, BF16)
    assert sums.times(1.5, sums.error) == pytest.approx(1.15)
    assert sums.times(2.0, sums.error / 2) == pytest.approx(1.3)


def test_by_earlier_rules_honest_runs_added_up_in_float32() -> None:
    known = replace(facts(audit_config()), added_up=64)
    for rules, count in (("4", 64), ("3", 1)):
        bench = Bench(lambda path: None, replace(known, rules_version=rules), 0)
        assert bench.sums.count == count
