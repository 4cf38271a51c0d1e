"""The CPU plugin's attention: the reference's function, written out only where that is faster."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from llmb.plugin.builtin import attention
from llmb.plugin.builtin.attention import WrittenOutAttention, write_out_attention
from llmb.reference.attention import CausalAttention
from llmb.reference.models import build
from llmb.reference.shapes import Gpt2Shape, LlamaShape, Shape

SIZE = (2, 3, 40, 16)
SMALL = {"sequence_length": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SHAPES = (
    LlamaShape(vocab_size=64, intermediate_size=48, num_key_value_heads=2, **SMALL),
    Gpt2Shape(vocab_size=64, intermediate_size=48, max_position_embeddings=16, **SMALL),
)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    tensors = (torch.randn(SIZE, generator=generator) for _ in range(3))
    return [tensor.to(dtype).requires_grad_() for tensor in tensors]


def passes(kind: type[CausalAttention], tensors: list[Tensor]) -> list[Tensor]:
    out = kind()(*tensors)
    weight = torch.linspace(-1, 1, out.numel()).view(SIZE).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), tensors)]


def no_kernel(*arguments: object, **options: object) -> Tensor:
    raise AssertionError("torch's own kernel was called")


def exact(tensors: list[Tensor]) -> list[Tensor]:
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    return passes(CausalAttention, wide)


def errors(kind: type[CausalAttention], sharpness: float) -> list[float]:
    """Return relative errors of the result and the gradients of queries, keys and values."""
    q, k, v = inputs(torch.bfloat16)
    tensors = [(t.detach() * sharpness).requires_grad_() for t in (q, k)] + [v]
    pairs = zip(passes(kind, tensors), exact(tensors), strict=True)
    return [float((found.double() - right).norm() / right.norm()) for found, right in pairs]


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
def test_values_and_gradients_are_as_exact_as_those_of_torchs_kernel(sharpness: float) -> None:
    kernel, written = (errors(kind, sharpness) for kind in (CausalAttention, WrittenOutAttention))
    for ours, theirs in zip(written, kernel, strict=True):
        assert ours < max(1.5 * theirs, 2**-8)


def test_it_is_not_torchs_kernel_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "scaled_dot_product_attention", no_kernel)
    assert all(
        one.dtype == torch.bfloat16 for one in passes(WrittenOutAttention, inputs(torch.bfloat16))
    )


def test_no_token_sees_a_later_one() -> None:
    q, k, v = (tensor.detach() for tensor in inputs(torch.bfloat16))
    before = WrittenOutAttention()(q, k, v)
    k[:, :, 20:], v[:, :, 20:] = 7, -7
    after = WrittenOutAttention()(q, k, v)
    assert torch.equal(before[:, :, :20], after[:, :, :20])
    assert not torch.equal(before[:, :, 20:], after[:, :, 20:])


def test_other_formats_shared_keys_masks_and_long_sequences_are_left_to_torchs_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = WrittenOutAttention()
    wide = [tensor.detach() for tensor in inputs(torch.float32)]
    assert torch.equal(written(*wide), CausalAttention()(*wide))
    q, k, v = (tensor.detach() for tensor in inputs(torch.bfloat16))
    grouped = (q, k[:, :1], v[:, :1])
    assert torch.equal(written(*grouped), CausalAttention()(*grouped))
    mask = torch.zeros(SIZE[2], SIZE[2], dtype=torch.bfloat16)
    assert torch.equal(written(q, k, v, mask), CausalAttention()(q, k, v, mask))
    for name, limit in (("MOST_SCORES", SIZE[0] * SIZE[1] * SIZE[2] ** 2), ("LONGEST", SIZE[2])):
        monkeypatch.setattr(attention, name, limit)
        assert not torch.equal(written(q, k, v), CausalAttention()(q, k, v))
        monkeypatch.setattr(attention, name, limit - 1)
        assert torch.equal(written(q, k, v), CausalAttention()(q, k, v))
        monkeypatch.setattr(attention, name, limit)


@pytest.mark.parametrize("shape", SHAPES, ids=["llama", "gpt2"])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_model_keeps_its_parameters_and_loss(
    monkeypatch: pytest.MonkeyPatch, shape: Shape, autocast: bool
) -> None:
    model = build(shape, 1, torch.float32 if autocast else torch.bfloat16)
    names = [name for name, _ in model.named_parameters()]
    ids = torch.randint(64, (2, 16), generator=torch.Generator().manual_seed(4))

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return model(ids, labels=ids)  # type: ignore[no-any-return]

    before = loss().item()
    write_out_attention(model)
    monkeypatch.setattr(F, "scaled_dot_product_attention", no_kernel)
    assert [name for name, _ in model.named_parameters()] == names
    written = [module for module in model.modules() if isinstance(module, WrittenOutAttention)]
    assert len(written) == shape.num_hidden_layers
    after = loss()
    assert after.item() == pytest.approx(before, rel=2**-7)
    after.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
