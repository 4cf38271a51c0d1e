"""RMSNorm rounds to the model's dtype once, after the gain."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmb.reference.llama import RMSNorm

EPS = 1e-6


@pytest.fixture
def x() -> Tensor:
    return torch.randn(64, 100, generator=torch.Generator().manual_seed(7))


def norm_with_gains(dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(100, EPS)
    norm.weight.data.normal_(1.0, 0.3, generator=torch.Generator().manual_seed(8))
    return norm.to(dtype)


def exact(norm: RMSNorm, x: Tensor) -> Tensor:
    x = x.double()
    return norm.weight.double() * x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt()


def worst_relative_error(value: Tensor, truth: Tensor) -> float:
    return ((value.double() - truth).abs() / truth.abs()).max().item()


def test_bf16_output_is_within_the_one_rounding_that_two_casts_exceed(x: Tensor) -> None:
    norm, low = norm_with_gains(torch.bfloat16), x.to(torch.bfloat16)
    truth = exact(norm, low)
    one_rounding = 2.0**-8 / (1 + 2.0**-8) * 1.0001  # half a unit in the last place, just above 1
    assert worst_relative_error(norm(low), truth) < one_rounding
    cast_before_gain = norm.weight * (truth / norm.weight.double()).to(torch.bfloat16)
    assert worst_relative_error(cast_before_gain, truth) > one_rounding


def test_fp16_inputs_whose_squares_overflow_fp16_are_normalised(x: Tensor) -> None:
    norm, large = norm_with_gains(torch.float16), (x * 1000).to(torch.float16)
    assert large.pow(2).isinf().any()
    torch.testing.assert_close(norm(large).double(), exact(norm, large), rtol=1e-3, atol=1e-6)


def test_float64_stays_float64(x: Tensor) -> None:
    norm = norm_with_gains(torch.float64)
    assert worst_relative_error(norm(x.double()), exact(norm, x)) < 1e-14


def test_eps_is_inside_the_root() -> None:
    norm = RMSNorm(100, EPS).double()
    tiny = torch.full((1, 100), 1e-3, dtype=torch.float64)  # its mean square is eps
    torch.testing.assert_close(norm(tiny), torch.full_like(tiny, 0.5**0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_output_has_the_inputs_dtype(x: Tensor, dtype: torch.dtype) -> None:
    assert norm_with_gains(dtype)(x.to(dtype)).dtype == dtype
