"""Sums that tell how wide a matrix product is inside: right where it is wide, wrong where not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmb.config import BF16, FP16, FP32, Precision
from llmb.measure.litmus import litmus
from tests.unit.builders_runtime import run_config


@pytest.mark.parametrize(
    ("precision", "big", "bits"),
    [(BF16, 512.0, 8), (FP16, 4096.0, 11), (FP32, 4096.0, 24)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_torchs_products_on_the_cpu_are_wide_enough(
    precision: Precision, big: float, bits: int
) -> None:
    found = litmus(run_config(precision=precision))
    assert found is not None
    assert (found.ones, found.length) == (3200.0, 3200)
    assert (found.big, found.kept, found.operand_bits) == (big, 1.0, bits)


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
def test_the_big_number_and_one_cannot_be_told_apart_by_the_operands(precision: Precision) -> None:
    found = litmus(run_config(precision=precision))
    assert found is not None
    big = torch.tensor(found.big, dtype=getattr(torch, precision.dtype))
    assert big + 1 == big


def one_by_one(left: Tensor, right: Tensor) -> Tensor:
    """Multiply with an accumulator of the operands' own type."""
    total = torch.zeros(len(left), right.shape[1], dtype=left.dtype)
    for k in range(left.shape[1]):
        total = total + left[:, k : k + 1] * right[k : k + 1]
    return total


@pytest.mark.parametrize(("precision", "ones"), [(BF16, 256.0), (FP16, 2048.0)])
def test_an_accumulator_as_narrow_as_its_operands_shows(
    precision: Precision, ones: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "matmul", one_by_one)
    found = litmus(run_config(precision=precision))
    assert found is not None
    assert (found.ones, found.kept) == (ones, 0.0)


def rounded_to(bits: int, value: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp((mantissa * 2**bits).round(), exponent - bits)


@pytest.mark.parametrize("bits", [11, 8], ids=["TF32", "BF16"])
def test_operands_rounded_on_their_way_in_show(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.matmul
    monkeypatch.setattr(
        torch, "matmul", lambda a, b: product(rounded_to(bits, a), rounded_to(bits, b))
    )
    found = litmus(run_config(precision=FP32))
    assert found is not None
    assert found.operand_bits == bits
    assert found.kept == 1.0  # the sums are as wide as before


def test_a_float32_product_whose_sums_are_narrower_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(left: Tensor, right: Tensor) -> Tensor:
        return one_by_one(left.half(), right.half()).float()

    monkeypatch.setattr(torch, "matmul", narrow)
    found = litmus(run_config(precision=FP32))
    assert found is not None
    assert found.kept == 0.0


def test_a_type_without_a_known_width_is_not_measured() -> None:
    eight = Precision(name="FP8", bits=8, dtype="float8_e4m3fn")
    assert litmus(run_config(precision=eight)) is None
