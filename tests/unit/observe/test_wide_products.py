"""Honest passes without 16-bit instructions: which operators are widened, and for which runs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from llmb.config import BF16, FP16, FP32, Precision
from llmb.observe import wide_products
from llmb.observe.wide_products import WideProducts, as_computed
from llmb.plugin.builtin.wide import widen_products
from llmb.reference.models import build
from tests.unit.builders_runtime import run_config
from tests.unit.plugin.test_builtin_wide import SHAPES, step

WIDE_BF16 = BF16.model_copy(update={"native": False, "products": "FP32"})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_and_attention_are_float32_s_rounded_once_and_their_gradients_too(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 4, 6).to(dtype).requires_grad_() for _ in range(3))
    wide = [one.detach().float().requires_grad_() for one in (q, k, v)]
    upstream = torch.randn(1, 2, 4, 6).to(dtype)
    with WideProducts():
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found.backward(upstream)
        product = q.detach()[0, 0] @ k.detach()[0, 0].t()
    right = F.scaled_dot_product_attention(*wide, is_causal=True)
    right.backward(upstream.float())
    assert torch.equal(found, right.to(dtype))
    assert torch.equal(product, (wide[0][0, 0] @ wide[1][0, 0].t()).to(dtype))
    for narrow, one in zip((q, k, v), wide, strict=True):
        torch.testing.assert_close(narrow.grad.float(), one.grad, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("family", list(SHAPES))
def test_nothing_of_a_reference_model_reaches_a_16_bit_product(family: str) -> None:
    model = build(SHAPES[family], 1, torch.bfloat16)
    inner: list[str] = []
    ids = torch.arange(8).view(1, 8)
    from tests.unit.plugin.test_builtin_wide import Narrow

    narrow = Narrow()
    with narrow, WideProducts():  # the inner mode is asked first; what it calls goes to the outer
        model(ids, labels=ids).backward()
    assert narrow.seen == inner


def test_the_plugins_way_and_the_honest_way_agree_to_the_last_place_though_written_apart() -> None:
    honest, vendor = (build(SHAPES["llama"], 1, torch.bfloat16) for _ in range(2))
    widen_products(vendor)
    with WideProducts():
        step(honest, "llama")
    step(vendor, "llama")
    for (name, one), other in zip(honest.named_parameters(), vendor.parameters(), strict=True):
        off = (one.grad.float() - other.grad.float()).norm() / one.grad.float().norm()
        assert off <= 2**-8, name


def test_float32_is_left_alone() -> None:
    x = torch.randn(3, 4)
    with WideProducts():
        assert torch.equal(x @ x.t(), torch.mm(x, x.t()))


@pytest.mark.parametrize(
    ("declared", "dtype", "device", "faster", "wide"),
    [
        # A run's own format, as the run has it, whatever this host is faster with.
        (BF16, torch.bfloat16, "cpu", "wide", False),
        (WIDE_BF16, torch.bfloat16, "cpu", "native", True),
        # Borders, and host's runs beside a device's: as this host is faster.
        (FP32, torch.bfloat16, "cpu", "wide", True),
        (FP32, torch.bfloat16, "cpu", "native", False),
        (WIDE_BF16, torch.float16, "cpu", "native", False),
        # What is not 16-bit, or not on this processor, is left alone.
        (FP32, torch.float32, "cpu", "wide", False),
        (FP16, torch.float16, "meta", "wide", False),
    ],
)
def test_a_pass_is_made_as_its_run_has_it_or_as_the_host_is_faster(
    monkeypatch: pytest.MonkeyPatch,
    declared: Precision,
    dtype: torch.dtype,
    device: str,
    faster: str,
    wide: bool,
) -> None:
    monkeypatch.setattr(wide_products, "faster_way", lambda _: faster)
    found = as_computed(run_config(precision=declared), dtype, device)
    assert isinstance(found, WideProducts) is wide


def test_beside_a_device_the_host_computes_the_declared_format_as_it_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_products, "faster_way", lambda _: "wide")
    config = run_config(precision=BF16, device="warp:0")
    assert isinstance(as_computed(config, torch.bfloat16, "cpu"), WideProducts)
