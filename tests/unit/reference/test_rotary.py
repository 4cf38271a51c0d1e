"""Rotary tables are exact where BF16 positions would not be, and rotate as relative positions."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.reference.llama import Llama, rotary_tables, rotate

HEAD_DIM, THETA = 100, 10000.0
BF16_HALF_ULP = 2.0**-9  # of values in [0.5, 1], the largest a cosine or sine can round by


def exact_angle(position: int) -> Tensor:
    index = torch.arange(0, HEAD_DIM, 2, dtype=torch.float64)
    return (position * THETA ** -(index / HEAD_DIM)).repeat(2)


def tables(length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return rotary_tables(torch.empty(1, length, 8, dtype=dtype), HEAD_DIM, THETA)


def test_bf16_tables_are_the_float32_tables_cast() -> None:
    for low, wide in zip(tables(512, torch.bfloat16), tables(512, torch.float32), strict=True):
        assert torch.equal(low, wide.to(torch.bfloat16))


def test_at_position_255_bf16_tables_are_off_by_one_rounding_at_most() -> None:
    cos, sin = tables(256, torch.bfloat16)
    assert (cos[255] - exact_angle(255).cos()).abs().max() < BF16_HALF_ULP + 1e-4
    assert (sin[255] - exact_angle(255).sin()).abs().max() < BF16_HALF_ULP + 1e-4


def test_above_position_256_bf16_positions_would_be_a_radian_off_and_the_tables_are_not() -> None:
    cos, _ = tables(512, torch.bfloat16)
    naive = torch.arange(512).to(torch.bfloat16)
    assert naive[511] == 512
    assert len(naive[257:].unique()) < 255
    naive_error = (naive[511].double().cos() - exact_angle(511)[0].cos()).abs()
    assert naive_error > 0.5
    assert (cos[511] - exact_angle(511).cos()).abs().max() < BF16_HALF_ULP + 1e-4


def test_float64_tables_are_exact_to_float64() -> None:
    cos, sin = tables(256, torch.float64)
    torch.testing.assert_close(cos[255], exact_angle(255).cos(), rtol=0, atol=1e-13)
    torch.testing.assert_close(sin[255], exact_angle(255).sin(), rtol=0, atol=1e-13)


def test_casting_the_model_cannot_touch_the_tables_because_it_has_no_buffers(model: Llama) -> None:
    assert not list(model.buffers())


def test_a_product_of_rotated_vectors_depends_on_the_distance_only() -> None:
    generator = torch.Generator().manual_seed(6)
    q, k = torch.randn(2, HEAD_DIM, dtype=torch.float64, generator=generator)
    cos, sin = tables(64, torch.float64)
    products = rotate(q.expand(64, -1), cos, sin) @ rotate(k.expand(64, -1), cos, sin).T
    for offset in (0, 1, 9):
        diagonal = products.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (products.diagonal(1)[0] - products.diagonal(9)[0]).abs() > 0.1


def test_dimension_j_turns_with_dimension_j_plus_half() -> None:
    cos, sin = tables(2, torch.float64)
    unit = torch.zeros(HEAD_DIM, dtype=torch.float64)
    unit[3] = 1.0
    turned = rotate(unit.expand(2, -1), cos, sin)[1]
    assert turned.nonzero().flatten().tolist() == [3, 53]
    assert turned[3] > 0
    assert turned[53] > 0
