"""Emulated formats, held against torch's own casts and against bit patterns written by hand."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb import formats
from llmb.formats import Element, Format
from llmb.reference.formats import emulate, round_to
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape
from tests import needs

NAMED = {known.name: known.format for known in formats.KNOWN if known.format is not None}
TF32_ELEMENT, E4M3 = NAMED["TF32"].forward, NAMED["FP8"].forward
E5M2 = NAMED["FP8"].gradient
BF16_ELEMENT = Element(8, 7, (2 - 2.0**-7) * 2.0**127)
FP16_ELEMENT = Element(5, 10, 65504.0)
BF16 = Format(BF16_ELEMENT, head=True)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def bits(*numbers: int) -> Tensor:
    signed = [n - 2**32 if n >= 2**31 else n for n in numbers]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32)


def round_to_tf32(value: Tensor) -> Tensor:
    return round_to(value, TF32_ELEMENT)


def round_to_bf16(value: Tensor) -> Tensor:
    return round_to(value, BF16_ELEMENT)


def round_to_e4m3(value: Tensor) -> Tensor:
    return round_to(value, E4M3)


def round_to_e5m2(value: Tensor) -> Tensor:
    return round_to(value, E5M2)


# -- every pattern ---------------------------------------------------------------------------


def patterns(stride: int) -> Tensor:
    """Return every so-many-th number of float32, infinities and both zeros among them, no NaN."""
    found = torch.arange(-(2**31), 2**31, stride, dtype=torch.int64).to(torch.int32)
    value = torch.cat((found.view(torch.float32), torch.tensor([0.0, -0.0, math.inf, -math.inf])))
    return value[~value.isnan()]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [(BF16_ELEMENT, torch.bfloat16), (FP16_ELEMENT, torch.float16)],
    ids=["BF16", "FP16"],
)
def test_numbers_without_a_scale_are_torchs_own_cast_bit_for_bit(
    element: Element, dtype: torch.dtype
) -> None:
    value = patterns(1021)
    found, right = round_to(value, element), value.to(dtype).float()
    assert torch.equal(found.view(torch.int32), right.view(torch.int32))


@pytest.mark.parametrize(
    ("element", "dtype"),
    [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)],
    ids=["E4M3", "E5M2"],
)
def test_eight_bit_numbers_are_torchs_own_cast_bit_for_bit(
    element: Element, dtype: torch.dtype
) -> None:
    value = patterns(1021)
    value = value[value.abs() <= element.largest]
    value[-1] = element.largest  # so the scale is 1
    found, right = round_to(value, element), value.to(dtype).float()
    assert torch.equal(found.view(torch.int32), right.view(torch.int32))


@pytest.mark.parametrize("exponent_bits", range(1, 6))
@pytest.mark.parametrize("mantissa_bits", range(4))
def test_numbers_of_any_width_are_the_nearest_of_all_that_there_are(
    exponent_bits: int, mantissa_bits: int
) -> None:
    bias = 2 ** (exponent_bits - 1) - 1
    normal = [
        2.0 ** (e - bias) * (1 + m / 2**mantissa_bits)
        for e in range(1, 2**exponent_bits)
        for m in range(2**mantissa_bits)
    ]
    small = [2.0 ** (1 - bias) * m / 2**mantissa_bits for m in range(2**mantissa_bits)]
    table = torch.tensor([*small, *normal])
    element = Element(exponent_bits, mantissa_bits, float(table[-1]), scale="float32")
    value = random(4000) * table[-1] / 3
    value[0] = table[-1]  # so the scale is 1
    value = value.clamp(-table[-1], table[-1])
    distance = (value.abs()[:, None] - table).abs()
    found = round_to(value, element)
    assert torch.isin(found.abs(), table).all()
    assert torch.equal((value - found).abs(), distance.amin(1))


# -- scales -----------------------------------------------------------------------------------


def test_a_block_of_mx_has_the_power_of_two_of_the_specification() -> None:
    """2^(floor(log2(largest)) - 2) for E2M1, whose largest power of two is 4; 7 becomes 6."""
    element = NAMED["MXFP4"].forward
    value = torch.zeros(2, 64)
    value[0, :4] = torch.tensor([7.0, 2.4, 0.3, -5.0])
    value[0, 32:35] = torch.tensor([100.0, 17.0, 3.0])
    found = round_to(value, element)
    assert found[0, :4].tolist() == [6.0, 2.0, 0.5, -4.0]
    assert found[0, 32:35].tolist() == [96.0, 16.0, 0.0]
    assert not found[1].any()


def test_a_block_of_nvfp4_has_a_scale_of_e4m3_beside_that_of_the_tensor() -> None:
    """The largest block's scale is 448 times the tensor's: its largest value stays itself."""
    value = torch.zeros(1, 48)
    value[0, 0], value[0, 1] = 6 * 448.0, 448.0  # the tensor's scale is 1
    value[0, 16:18] = torch.tensor([6.3, 3.2])  # 1.05 -> 1.0: divided by that
    value[0, 32] = 1e-4  # below half the smallest scale
    found = round_to(value, NAMED["NVFP4"].forward)
    assert found[0, :2].tolist() == [2688.0, 448.0]
    assert found[0, 16:18].tolist() == [6.0, 3.0]
    assert found[0, 32] == 0


@pytest.mark.parametrize("name", ["MXFP8", "MXFP6", "NVFP4", "MXFP4"])
def test_blocks_lie_along_the_dimension_that_is_summed_over(name: str) -> None:
    element = NAMED[name].forward
    value = random(48, 64) * torch.exp2(4 * random(48, 64, seed=1))
    assert torch.equal(round_to(value, element, 0), round_to(value.t(), element).t())
    assert not torch.equal(round_to(value, element, 0), round_to(value, element))


@pytest.mark.parametrize("length", [1, 5, 31, 33, 100])
def test_a_last_block_may_be_shorter(length: int) -> None:
    element = NAMED["MXFP4"].forward
    value = random(3, length)
    found = round_to(value, element)
    assert found.shape == value.shape
    for begin in range(0, length, 32):
        block = slice(begin, begin + 32)
        assert torch.equal(found[:, block], round_to(value[:, block], element))


@pytest.mark.parametrize("name", ["MXFP8", "MXFP6", "NVFP4", "MXFP4"])
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e38, 3e38])
def test_blocks_of_zeros_tiny_and_huge_numbers_are_finite(name: str, size: float) -> None:
    found = round_to(torch.full((64,), size), NAMED[name].forward)
    assert torch.isfinite(found).all()


def test_a_scaled_fixed_point_number_is_an_integer_of_its_bits() -> None:
    """INT8 with a scale a row: a multiple of the row's largest value / 127."""
    element = Element(0, 7, 127 / 128, scale="float32", block=65_536)
    value = random(4, 100)
    step = value.abs().amax(-1, keepdim=True) / 127
    torch.testing.assert_close(round_to(value, element), (value / step).round() * step)


def test_stochastic_rounding_keeps_the_mean_the_neighbours_and_the_same_draws() -> None:
    nearest = Element(2, 1, 6.0, scale="float32")
    element = replace(nearest, rounding="stochastic")
    for number, low, high in ((2.2, 2.0, 3.0), (0.1, 0.0, 0.5), (-4.5, -6.0, -4.0)):
        value = torch.full((100_001,), number)
        value[-1] = 6.0  # so the scale is 1
        found = round_to(value, element)[:-1]
        assert set(found.unique().tolist()) == {low, high}
        assert float(found.mean()) == pytest.approx(number, abs=0.01)
        assert torch.equal(found, round_to(value, element)[:-1])
    assert torch.equal(round_to(torch.tensor([0.0, 6.0]), element), torch.tensor([0.0, 6.0]))


@pytest.mark.parametrize("element", ["MXFP8", "MXFP8 gradient", "MXFP6", "MXFP4", "NVFP4"])
def test_blocks_are_those_of_torchao(element: str) -> None:
    """torchao's own tensors, bit for bit: MX by the specification's rule (FLOOR), and NVFP4."""
    needs.package("torchao")
    with warnings.catch_warnings():  # of kernels for devices that are not there
        warnings.simplefilter("ignore")
        mx_tensor = import_module("torchao.prototype.mx_formats.mx_tensor")
        nvfp4 = import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    name, _, of_gradient = element.partition(" ")
    ours = NAMED[name].gradient if of_gradient else NAMED[name].forward
    value = random(64, 256) * torch.exp2(2 * random(64, 256, seed=1))
    if name == "NVFP4":
        scale = nvfp4.per_tensor_amax_to_scale(value.abs().max())
        right = nvfp4.NVFP4Tensor.to_nvfp4(value, per_tensor_scale=scale)
    else:
        dtypes = {"MXFP8": torch.float8_e4m3fn, "MXFP6": "fp6_e3m2"}
        dtype = dtypes.get(name, torch.float4_e2m1fn_x2)
        dtype = torch.float8_e5m2 if of_gradient else dtype
        right = mx_tensor.MXTensor.to_mx(value, dtype, block_size=32)
    assert torch.equal(round_to(value, ours), right.dequantize(torch.float32))


# -- what cannot be said ----------------------------------------------------------------------

IMPOSSIBLE = {
    "exponent_bits": ({"exponent_bits": 50}, "exponent_bits is 50"),
    "negative": ({"exponent_bits": -1}, "exponent_bits is -1"),
    "no whole number": ({"mantissa_bits": 1.5}, "mantissa_bits is 1.5"),
    "true": ({"mantissa_bits": True}, "mantissa_bits is True"),
    "mantissa_bits": ({"mantissa_bits": 21}, "mantissa_bits is 21"),
    "sign alone": ({"exponent_bits": 0, "mantissa_bits": 0}, "both 0"),
    "wide fixed point": ({"exponent_bits": 0, "mantissa_bits": 16}, "mantissa_bits is 16"),
    "largest": ({"largest": 8.0}, "largest is 8.0, must be 1 to below 8"),
    "tiny largest": ({"largest": 0.5}, "largest is 0.5"),
    "no number": ({"largest": math.nan}, "largest is nan"),
    "infinite": ({"exponent_bits": 8, "largest": math.inf}, "largest is inf"),
    "block": ({"block": 10**9}, "block is 1000000000"),
    "block of one": ({"block": 1}, "block is 1"),
    "block without a scale": ({"scale": "none"}, "scale is none"),
    "e4m3 without a block": ({"scale": "e4m3", "block": None}, "say block"),
    "scale": ({"scale": "e5m3"}, "scale is 'e5m3'"),
    "rounding": ({"rounding": "up"}, "rounding is 'up'"),
}


@pytest.mark.parametrize(("changes", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_element_that_cannot_be_computed_with_is_a_value_error_of_one_line(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        replace(NAMED["MXFP4"].forward, **changes)
    assert "\n" not in str(raised.value)


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
        round_to_tf32(bits(number)).view(torch.int32), bits(TF32[number]).view(torch.int32)
    )


def test_tf32_of_many_numbers_is_rounding_to_eleven_significant_bits_and_ten_bits_are_left() -> (
    None
):
    value = random(20_000) * torch.exp2(random(20_000, seed=1) * 20)
    found = round_to_tf32(value)
    significand, exponent = torch.frexp(value.double())
    right = torch.ldexp(torch.round(significand * 2**11) / 2**11, exponent)  # torch: half to even
    assert torch.equal(found.double(), right)
    assert not (found.view(torch.int32) & (2**13 - 1)).any()
    assert torch.equal(round_to_tf32(found), found)


def test_tf32_keeps_a_nan_a_nan() -> None:
    assert math.isnan(round_to_tf32(torch.tensor(math.nan)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tf32_holds_every_number_of_sixteen_bits(dtype: torch.dtype) -> None:
    value = random(1000).to(dtype)
    assert torch.equal(round_to_tf32(value), value)


def test_a_transposed_matrix_is_rounded_element_by_element() -> None:
    value = random(6, 4)
    for rounding in (round_to_tf32, round_to_bf16, round_to_e4m3):
        assert torch.equal(rounding(value.t()), rounding(value).t())


# -- BF16 and FP8 ---------------------------------------------------------------------------


def test_bf16_is_torchs_own_cast() -> None:
    value = random(5000) * 100
    assert torch.equal(round_to_bf16(value), value.bfloat16().float())


@pytest.mark.parametrize(
    ("rounding", "dtype", "largest"),
    [
        (round_to_e4m3, torch.float8_e4m3fn, 448.0),
        (round_to_e5m2, torch.float8_e5m2, 57344.0),
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
    assert round_to_e4m3(value).tolist() == [448, 16, 16, 18, 20, 20, -16, -20]
    value = torch.tensor([57344.0, 16, 17, 18, 19, 22, 26, -18])
    assert round_to_e5m2(value).tolist() == [57344, 16, 16, 16, 20, 24, 24, -16]


@pytest.mark.parametrize("rounding", [round_to_e4m3, round_to_e5m2])
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e38])
def test_fp8_of_zeros_tiny_and_huge_numbers_is_finite(
    rounding: Callable[[Tensor], Tensor], size: float
) -> None:
    found = rounding(torch.full((3,), size))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, torch.full((3,), size), rtol=0.07, atol=1e-38)


@pytest.mark.parametrize("rounding", [round_to_bf16, round_to_e4m3, round_to_e5m2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rounded_tensor_keeps_its_own_type(
    rounding: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    assert rounding(random(4).to(dtype)).dtype is dtype


def test_fp8_does_not_hide_what_is_no_number() -> None:
    value = random(8)
    value[3] = math.nan
    assert round_to_e4m3(value).isnan().any()


def test_each_format_is_rougher_than_the_one_before() -> None:
    value = random(4096)
    errors = [
        float((rounding(value) - value).norm() / value.norm())
        for rounding in (
            round_to_tf32,
            round_to_bf16,
            round_to_e4m3,
            round_to_e5m2,
        )
    ]
    assert [round(-math.log2(error)) for error in errors] == [12, 9, 5, 4]


# -- linear layers --------------------------------------------------------------------------


def test_an_emulated_layer_multiplies_rounded_operands_forward_and_backward() -> None:
    linear = nn.Linear(24, 16, bias=False)
    x, grad = random(2, 5, 24).requires_grad_(), random(2, 5, 16, seed=1)
    weight = linear.weight.detach().clone()
    emulated = emulate(nn.Sequential(linear), NAMED["FP8"])
    out = emulated(x)
    out.backward(grad)

    wide_x, wide_w = round_to_e4m3(x.detach()), round_to_e4m3(weight)
    wide_grad = round_to_e5m2(grad)
    assert torch.equal(out, F.linear(wide_x, wide_w))
    assert torch.equal(x.grad, wide_grad @ wide_w)
    (parameter,) = emulated.parameters()
    torch.testing.assert_close(
        parameter.grad, wide_grad.flatten(0, 1).t() @ wide_x.flatten(0, 1), rtol=1e-6, atol=1e-6
    )
    assert torch.equal(parameter, weight), "the stored weight is not rounded"


@pytest.mark.parametrize("name", ["NVFP4", "MXFP4"])
def test_the_three_products_round_their_operands_along_what_they_sum_over(name: str) -> None:
    linear = nn.Linear(64, 48, bias=False)
    x, grad = random(2, 40, 64).requires_grad_(), random(2, 40, 48, seed=1)
    weight, element = linear.weight.detach(), NAMED[name].forward
    out = emulate(nn.Sequential(linear), NAMED[name])(x)
    out.backward(grad)

    flat_x, flat_grad = x.detach().flatten(0, 1), grad.flatten(0, 1)
    assert torch.equal(out, F.linear(round_to(x.detach(), element), round_to(weight, element)))
    by_outputs = round_to(grad, element) @ round_to(weight.t(), element).t()
    torch.testing.assert_close(x.grad, by_outputs)
    by_tokens = round_to(flat_grad.t(), element) @ round_to(flat_x.t(), element).t()
    torch.testing.assert_close(linear.weight.grad, by_tokens)


@pytest.mark.parametrize("name", NAMED)
def test_parameters_keep_names_values_and_identity(name: str, shape: LlamaShape) -> None:
    model = build(shape, seed=1, dtype=torch.float32)
    before = dict(model.named_parameters())
    after = dict(emulate(model, NAMED[name]).named_parameters())
    assert list(after) == list(before)
    assert all(after[key] is before[key] for key in before)


@pytest.mark.parametrize(
    ("name", "head"), [("TF32", True), ("FP8", False), ("MXFP8", False), ("NVFP4", False)]
)
def test_every_linear_layer_is_emulated_and_the_head_unless_narrow(
    name: str, head: bool, model: Llama
) -> None:
    count = sum(isinstance(module, nn.Linear) for module in model.modules())
    emulate(model, NAMED[name])
    left = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert left == ([] if head else ["lm_head"])
    assert count == 7 * 4 + 1


@pytest.mark.parametrize(
    ("name", "least", "most"), [("TF32", 9, 14), ("FP8", 2, 6), ("MXFP8", 2, 6), ("MXFP4", 0.4, 4)]
)
def test_a_model_in_a_format_has_about_the_bits_of_the_format(
    name: str, least: float, most: float, shape: LlamaShape, ids: Tensor
) -> None:
    right = build(shape, seed=1, dtype=torch.float64)(ids).detach()
    shown = emulate(build(shape, seed=1, dtype=torch.float32), NAMED[name])(ids).detach()
    error = float((shown - right).norm() / right.norm())
    assert least < -math.log2(error) < most
