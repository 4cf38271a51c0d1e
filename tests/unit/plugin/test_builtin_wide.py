"""Products of 16-bit values in float32: their numbers, their operands, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from llmb.plugin.builtin.wide import WideAttention, WideLinear, wide_linear, widen_products
from llmb.reference.attention import CausalAttention
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape
from tests.unit.builders_runtime import TINY

NARROW = [torch.bfloat16, torch.float16]
SHAPES: dict[str, Shape] = {
    "llama": LlamaShape(**TINY, vocab_size=64, num_key_value_heads=2),
    "gpt2": Gpt2Shape(**TINY, vocab_size=64),
    "bert": BertShape(**TINY, vocab_size=64, dropout=0.0),
}


def tensors(dtype: torch.dtype, bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
    torch.manual_seed(3)
    x, w, b = (torch.randn(size).to(dtype).requires_grad_() for size in ((2, 3, 8), (10, 8), (10,)))
    return x, w, b if bias else None


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("at_once", [0, 1, 24, 10**6])
def test_output_and_gradients_are_those_of_float32_rounded_once(
    dtype: torch.dtype, bias: bool, at_once: int
) -> None:
    inputs = [one for one in tensors(dtype, bias) if one is not None]
    out = wide_linear(*inputs, at_once=at_once)
    upstream = torch.randn(out.shape).to(dtype)
    found = torch.autograd.grad(out, inputs, upstream)

    wide = [one.detach().float().requires_grad_() for one in inputs]
    right = F.linear(*wide)
    expected = torch.autograd.grad(right, wide, upstream.float())
    assert out.dtype == dtype
    for one, other in zip((out, *found), (right, *expected), strict=True):
        # Another order of float32 sums may change the last bit of what is rounded.
        torch.testing.assert_close(one.float(), other.to(dtype).float(), rtol=1e-2, atol=1e-6)
        exact = (one == other.to(dtype)).double().mean()
        assert exact >= 0.95


def test_a_weight_is_read_at_every_use() -> None:
    x, w, _ = tensors(torch.bfloat16)
    before = wide_linear(x, w)
    with torch.no_grad():
        w.zero_()
    assert before.abs().max() > 0
    assert wide_linear(x, w).abs().max() == 0


def test_float32_is_multiplied_as_it_is_and_under_autocast_as_the_narrow_type() -> None:
    x, w, b = (one.detach().float() for one in tensors(torch.float32) if one is not None)
    assert torch.equal(wide_linear(x, w, b), F.linear(x, w, b))
    with torch.autocast("cpu", torch.bfloat16):
        narrowed = wide_linear(x, w, b)
    operands = [one.bfloat16().float() for one in (x, w, b)]
    assert torch.equal(narrowed, F.linear(*operands).bfloat16())


@pytest.mark.parametrize("dtype", NARROW)
def test_attention_is_float32_s_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    q, k, v = (torch.randn(1, 2, 6, 4).to(dtype) for _ in range(3))
    right = CausalAttention()(q.float(), k.float(), v.float()).to(dtype)
    assert torch.equal(WideAttention()(q, k, v), right)
    mask = torch.zeros(6, 6, dtype=dtype)
    assert WideAttention()(q, k, v, mask).dtype == dtype


class Narrow(TorchDispatchMode):  # type: ignore[misc]
    """Lists the products and attentions that are given 16-bit operands."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm", "addmm_") or "attention" in name:
            narrow = [a for a in args if isinstance(a, Tensor) and a.dtype in NARROW]
            self.seen += [name] * bool(narrow)
        return func(*args, **(kwargs or {}))


def step(model: nn.Module, family: str) -> list[str]:
    ids = torch.arange(8).view(1, 8)
    more = {}
    if family == "bert":
        more = {"next_sentence_label": torch.zeros(1, dtype=torch.long)}
        more["token_type_ids"] = torch.zeros_like(ids)
    with Narrow() as narrow:
        model(ids, labels=ids, **more).backward()
    return narrow.seen


@pytest.mark.parametrize("family", list(SHAPES))
@pytest.mark.parametrize("dtype", NARROW)
def test_no_product_of_a_widened_model_has_16_bit_operands_forward_or_backward(
    family: str, dtype: torch.dtype
) -> None:
    plain, widened = (build(SHAPES[family], 1, dtype) for _ in range(2))
    before = dict(widened.named_parameters())
    widen_products(widened)
    assert step(plain, family), "the reference's own products are 16-bit ones"
    assert step(widened, family) == []
    after = dict(widened.named_parameters())
    assert after.keys() == before.keys()
    assert all(after[name] is before[name] for name in before)
    for name, parameter in plain.named_parameters():
        error = (after[name].grad.float() - parameter.grad.float()).norm()
        # A key's bias changes no softmax: its gradient is nothing but rounding.
        assert error <= 0.05 * parameter.grad.float().norm() + 1e-5, name


@pytest.mark.parametrize("family", list(SHAPES))
def test_a_widened_model_under_autocast_multiplies_in_float32_too(family: str) -> None:
    model = build(SHAPES[family], 1, torch.float32)
    widen_products(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert step(model, family) == []


def test_a_compiler_is_given_whole_weights() -> None:
    models = [build(SHAPES["llama"], 1, torch.bfloat16) for _ in range(2)]
    for model, traced in zip(models, (False, True), strict=True):
        widen_products(model, traced=traced)
        sizes = {m.at_once for m in model.modules() if isinstance(m, WideLinear)}
        assert sizes == ({0} if traced else {2**24})
