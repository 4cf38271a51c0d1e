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


def test_values_and_gradients_are_those_of_torchs_kernel_within_the_formats_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs(torch.bfloat16)]
    expected = passes(CausalAttention, exact)
    monkeypatch.setattr(F, "scaled_dot_product_attention", no_kernel)
    for found, value in zip(
        passes(WrittenOutAttention, inputs(torch.bfloat16)), expected, strict=True
    ):
        assert found.dtype == torch.bfloat16
        assert float((found.double() - value).norm() / value.norm()) < 2**-7


def test_no_token_sees_a_later_one() -> None:
    q, k, v = (tensor.detach() for tensor in inputs(torch.bfloat16))
    before = WrittenOutAttention()(q, k, v)
    k[:, :, 20:], v[:, :, 20:] = 7, -7
    after = WrittenOutAttention()(q, k, v)
    assert torch.equal(before[:, :, :20], after[:, :, :20])
    assert not torch.equal(before[:, :, 20:], after[:, :, 20:])


def test_with_a_mask_tokens_attend_to_what_it_leaves() -> None:
    q, k, v = (tensor.detach() for tensor in inputs(torch.bfloat16))
    last, mask = q[:, :, -1:], torch.zeros(1, SIZE[2], dtype=torch.bfloat16)
    mask[:, 20:] = -torch.inf
    found = WrittenOutAttention()(last, k, v, mask)
    expected = WrittenOutAttention()(last, k[:, :, :20], v[:, :, :20], mask[:, :20])
    torch.testing.assert_close(found, expected, rtol=2**-6, atol=2**-8)
    kernel = CausalAttention()(last, k, v, mask)
    torch.testing.assert_close(found, kernel, rtol=2**-6, atol=2**-7)


def test_other_formats_shared_keys_and_long_sequences_are_left_to_torchs_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = WrittenOutAttention()
    wide = [tensor.detach() for tensor in inputs(torch.float32)]
    assert torch.equal(written(*wide), CausalAttention()(*wide))
    q, k, v = (tensor.detach() for tensor in inputs(torch.bfloat16))
    grouped = (q, k[:, :1], v[:, :1])
    assert torch.equal(written(*grouped), CausalAttention()(*grouped))
    monkeypatch.setattr(attention, "MOST_SCORES", SIZE[0] * SIZE[1] * SIZE[2] ** 2 - 1)
    assert torch.equal(written(q, k, v), CausalAttention()(q, k, v))


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
