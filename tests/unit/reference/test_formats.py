"""Emulated formats, held against torch's own casts and against bit patterns written by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.reference import formats
from llmb.reference.formats import emulate
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits(*numbers: int) -> Tensor:
    signed = [n - 2**32 if n >= 2**31 else n for n in numbers]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


# -- TF32 -----------------------------------------------------------------------------------

#: float32 as it is -> as TF32 holds it: 10 explicit bits of the significand, ties to even.
TF32 = {
    0x3F800000: 0x3F800000,  # 1
    0x3F800FFF: 0x3F800000,  # just below half a last place: down
    0x3F801000: 0x3F800000,  # half, and even already: down
    0x3F801001: 0x3F802000,  # just above half: up
    0x3F802000: 0x3F802000,  # 1 + 2^-10 is a value
    0x3F803000: 0x3F804000,  # half, and odd: up
    0x3FFFFFFF: 0x40000000,  # carries into the exponent
    0xBF801001: 0xBF802000,  # the same with a sign
    0xBF801000: 0xBF800000,
    0x00000000: 0x00000000,
    0x80000000: 0x80000000,  # minus zero
    0x00800000: 0x00800000,  # smallest normal number
    0x7F7FE000: 0x7F7FE000,  # largest of TF32
    0x7F7FFFFF: 0x7F800000,  # largest of float32: to infinity
    0x7F800000: 0x7F800000,  # infinity
    0xFF800000: 0xFF800000,
}


@pytest.mark.parametrize("number", TF32, ids=hex)
def test_tf32_rounds_to_the_bit_pattern_written_by_hand(number: int) -> None:
    assert torch.equal(
        formats.round_tf32(bits(number)).view(torch.int32), bits(TF32[number]).view(torch.int32)
    )


def test_tf32_of_many_numbers_is_rounding_to_eleven_significant_bits_and_ten_bits_are_left() -> (
    None
):
    value = random(20_000) * torch.exp2(random(20_000, seed=1) * 20)
    found = formats.round_tf32(value)
    significand, exponent = torch.frexp(value.double())
    right = torch.ldexp(torch.round(significand * 2**11) / 2**11, exponent)  # torch: half to even
    assert torch.equal(found.double(), right)
    assert not (found.view(torch.int32) & (2**13 - 1)).any()
    assert torch.equal(formats.round_tf32(found), found)


def test_tf32_keeps_a_nan_a_nan() -> None:
    assert math.isnan(formats.round_tf32(torch.tensor(math.nan)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tf32_holds_every_number_of_sixteen_bits(dtype: torch.dtype) -> None:
    value = random(1000).to(dtype)
    assert torch.equal(formats.round_tf32(value), value)


def test_a_transposed_matrix_is_rounded_element_by_element() -> None:
    value = random(6, 4)
    for rounding in (formats.round_tf32, formats.round_bf16, formats.round_e4m3):
        assert torch.equal(rounding(value.t()), rounding(value).t())


# -- BF16 and FP8 ---------------------------------------------------------------------------


def test_bf16_is_torchs_own_cast() -> None:
    value = random(5000) * 100
    assert torch.equal(formats.round_bf16(value), value.bfloat16().float())


@pytest.mark.parametrize(
    ("rounding", "dtype", "largest"),
    [
        (formats.round_e4m3, torch.float8_e4m3fn, 448.0),
        (formats.round_e5m2, torch.float8_e5m2, 57344.0),
    ],
)
@pytest.mark.parametrize("power", [-30, 0, 12])
def test_fp8_is_torchs_own_cast_at_a_scale_that_puts_the_largest_at_the_formats_largest(
    rounding: Callable[[Tensor], Tensor], dtype: torch.dtype, largest: float, power: int
) -> None:
    value = random(64, 64).clamp(-1, 1)
    value[3, 4] = -1.0
    value *= largest * 2.0**power  # so the scale is a power of two, and exact
    found = rounding(value)
    assert torch.equal(found, (value * 2.0**-power).to(dtype).float() * 2.0**power)
    assert found.abs().max() == largest * 2.0**power
    assert len(found.unique()) < 256


def test_e4m3_has_four_significant_bits_and_e5m2_three_ties_to_even() -> None:
    value = torch.tensor([448.0, 16, 17, 18, 19, 21, -17, -19])
    assert formats.round_e4m3(value).tolist() == [448, 16, 16, 18, 20, 20, -16, -20]
    value = torch.tensor([57344.0, 16, 17, 18, 19, 22, 26, -18])
    assert formats.round_e5m2(value).tolist() == [57344, 16, 16, 16, 20, 24, 24, -16]


@pytest.mark.parametrize("rounding", [formats.round_e4m3, formats.round_e5m2])
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e38])
def test_fp8_of_zeros_tiny_and_huge_numbers_is_finite(
    rounding: Callable[[Tensor], Tensor], size: float
) -> None:
    found = rounding(torch.full((3,), size))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, torch.full((3,), size), rtol=0.07, atol=1e-38)


@pytest.mark.parametrize("rounding", [formats.round_bf16, formats.round_e4m3, formats.round_e5m2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rounded_tensor_keeps_its_own_type(
    rounding: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    assert rounding(random(4).to(dtype)).dtype is dtype


def test_fp8_does_not_hide_what_is_no_number() -> None:
    value = random(8)
    value[3] = math.nan
    assert formats.round_e4m3(value).isnan().any()


def test_each_format_is_rougher_than_the_one_before() -> None:
    value = random(4096)
    errors = [
        float((rounding(value) - value).norm() / value.norm())
        for rounding in (
            formats.round_tf32,
            formats.round_bf16,
            formats.round_e4m3,
            formats.round_e5m2,
        )
    ]
    assert [round(-math.log2(error)) for error in errors] == [12, 9, 5, 4]


# -- linear layers --------------------------------------------------------------------------


def test_an_emulated_layer_multiplies_rounded_operands_forward_and_backward() -> None:
    linear = nn.Linear(24, 16, bias=False)
    x, grad = random(2, 5, 24).requires_grad_(), random(2, 5, 16, seed=1)
    weight = linear.weight.detach().clone()
    emulated = emulate(nn.Sequential(linear), "FP8")
    out = emulated(x)
    out.backward(grad)

    wide_x, wide_w = formats.round_e4m3(x.detach()), formats.round_e4m3(weight)
    wide_grad = formats.round_e5m2(grad)
    assert torch.equal(out, F.linear(wide_x, wide_w))
    assert torch.equal(x.grad, wide_grad @ wide_w)
    (parameter,) = emulated.parameters()
    torch.testing.assert_close(
        parameter.grad, wide_grad.flatten(0, 1).t() @ wide_x.flatten(0, 1), rtol=1e-6, atol=1e-6
    )
    assert torch.equal(parameter, weight), "the stored weight is not rounded"


@pytest.mark.parametrize("name", ["TF32", "BF16", "FP8"])
def test_parameters_keep_names_values_and_identity(name: str, shape: LlamaShape) -> None:
    model = build(shape, seed=1, dtype=torch.float32)
    before = dict(model.named_parameters())
    after = dict(emulate(model, name).named_parameters())
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in before)


@pytest.mark.parametrize(("name", "head"), [("TF32", True), ("BF16", True), ("FP8", False)])
def test_every_linear_layer_is_emulated_and_the_head_unless_in_fp8(
    name: str, head: bool, model: Llama
) -> None:
    count = sum(isinstance(module, nn.Linear) for module in model.modules())
    emulate(model, name)
    left = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert left == ([] if head else ["lm_head"])
    assert count == 7 * 4 + 1


@pytest.mark.parametrize(
    ("name", "least", "most"), [("TF32", 9, 14), ("BF16", 6, 10), ("FP8", 2, 6)]
)
def test_a_model_in_a_format_has_about_the_bits_of_the_format(
    name: str, least: float, most: float, shape: LlamaShape, ids: Tensor
) -> None:
    right = build(shape, seed=1, dtype=torch.float64)(ids).detach()
    shown = emulate(build(shape, seed=1, dtype=torch.float32), name)(ids).detach()
    error = float((shown - right).norm() / right.norm())
    assert least < -math.log2(error) < most


def test_emulating_a_format_that_no_one_knows_is_a_key_error(model: Llama) -> None:
    with pytest.raises(KeyError):
        emulate(model, "FP4")
