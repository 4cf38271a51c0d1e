"""The reference Llama against an implementation written by others: Hugging Face's, same weights.

The library keeps norms, rotary tables, loss and eager softmax in float32 even in a float64 model.
As it is, it can agree only to float32; with those widened, here and nowhere else, to float64.
"""

from __future__ import annotations

import os
from dataclasses import replace
from operator import itemgetter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.reference.cache import empty_cache
from llmb.reference.data import random_tokens
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape
from tests import needs
from tests.parity.decoding import decoded, decoded_by_the_library, generated

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

MULTI_HEAD = LlamaShape(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=8,
    initializer_range=0.125,  # 1 / sqrt(hidden_size): attention is far from uniform
)
SHAPES = {
    "multi_head": MULTI_HEAD,
    "grouped_query": replace(MULTI_HEAD, num_key_value_heads=2),
    "multi_query": replace(MULTI_HEAD, num_key_value_heads=1),
    "rope_base_500000": replace(MULTI_HEAD, rope_theta=500000.0),
    "eps_1e-5": replace(MULTI_HEAD, rms_norm_eps=1e-5),
    "no_padding_token": replace(MULTI_HEAD, padding_idx=None),
    "head_size_100": replace(
        MULTI_HEAD,
        hidden_size=400,
        intermediate_size=800,
        num_attention_heads=4,
        num_key_value_heads=4,
        initializer_range=0.05,
    ),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
both_attentions = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def hugging_face_config(shape: LlamaShape, attention: str = "sdpa") -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
        pad_token_id=shape.padding_idx,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )


def same_model_twice(
    shape: LlamaShape, attention: str, dtype: torch.dtype
) -> tuple[Llama, LlamaForCausalLM]:
    """Return ours and theirs with the same weights; norm gains are random, so their place shows."""
    ours = build(shape, seed=1, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in ours.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.normal_(1.0, 0.3, generator=generator)
    theirs = LlamaForCausalLM(hugging_face_config(shape, attention)).to(dtype)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    return ours, theirs


def tokens(shape: LlamaShape, length: int = 32) -> Tensor:
    ids = random_tokens(3, 3, length, shape.vocab_size)
    ids[0, ::7] = 0  # the padding token, also where the draw has none
    return ids


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the Frobenius norm of the difference over that of ``theirs``."""
    return ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()


def largest_error(ours: Llama, theirs: LlamaForCausalLM, ids: Tensor) -> tuple[str, float]:
    """Return the worst of logits, loss and every gradient, by name."""
    expected = theirs(ids, labels=ids, use_cache=False)
    expected.loss.backward()
    loss = ours(ids, labels=ids)
    loss.backward()
    errors = {
        "logits": relative_error(ours(ids), expected.logits),
        "loss": relative_error(loss, expected.loss),
    }
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        errors[name] = relative_error(parameter.grad, gradients.pop(name))
    assert not gradients, f"gradients only Hugging Face has: {sorted(gradients)}"
    return max(errors.items(), key=itemgetter(1))


@pytest.fixture
def float64_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen the library's float32 islands to float64."""

    def norm(self: nn.Module, x: Tensor) -> Tensor:
        return (
            self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )

    def tables(self: nn.Module, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        theta, width = self.config.rope_parameters["rope_theta"], self.config.head_dim
        inverse = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    def loss(self: nn.Module, logits: Tensor, labels: Tensor, **_: object) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return x.softmax(dim)  # without the library's dtype=float32

    monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_llama.LlamaRotaryEmbedding, "forward", tables)
    monkeypatch.setattr(
        LlamaForCausalLM, "loss_function", property(lambda self: loss.__get__(self))
    )
    monkeypatch.setattr(F, "softmax", softmax)


@every_shape
@both_attentions
def test_in_float64_logits_loss_and_gradients_agree_with_the_library_as_it_is(
    shape: LlamaShape, attention: str
) -> None:
    ours, theirs = same_model_twice(shape, attention, torch.float64)
    name, error = largest_error(ours, theirs, tokens(shape))
    assert error < 1e-6, name


@every_shape
@both_attentions
@pytest.mark.usefixtures("float64_library")
def test_in_float64_logits_loss_and_gradients_agree_to_1e_12_with_a_float64_library(
    shape: LlamaShape, attention: str
) -> None:
    ours, theirs = same_model_twice(shape, attention, torch.float64)
    name, error = largest_error(ours, theirs, tokens(shape, length=256))
    assert error < 1e-12, name


@every_shape
def test_in_float32_logits_loss_and_gradients_agree_to_1e_5(shape: LlamaShape) -> None:
    ours, theirs = same_model_twice(shape, "sdpa", torch.float32)
    name, error = largest_error(ours, theirs, tokens(shape))
    assert error < 1e-5, name


@every_shape
def test_in_bfloat16_the_logits_are_as_close_to_float64_as_the_librarys(shape: LlamaShape) -> None:
    ours, theirs = same_model_twice(shape, "sdpa", torch.bfloat16)
    ids = tokens(shape)
    exact = build(shape, seed=1, dtype=torch.float64)
    exact.load_state_dict(ours.state_dict(), strict=True)
    truth = exact(ids)
    error = relative_error(ours(ids), truth)
    assert error < 0.05
    assert error < 1.1 * relative_error(theirs(ids, use_cache=False).logits, truth)


@every_shape
@both_attentions
@pytest.mark.usefixtures("float64_library")
def test_in_float64_cached_decoding_agrees_to_1e_10_and_generates_the_same_tokens(
    shape: LlamaShape, attention: str
) -> None:
    ours, theirs = same_model_twice(shape, attention, torch.float64)
    prompt = tokens(shape, length=7)
    found, chosen = decoded(ours, empty_cache(shape, 3, 32, torch.float64), prompt, 20)
    assert torch.equal(chosen, generated(theirs, prompt, 20))
    expected = decoded_by_the_library(theirs, torch.cat((prompt, chosen), dim=1), 7)
    error = relative_error(found, expected)
    assert error < 1e-10, error


@every_shape
def test_a_state_dict_loads_strictly_in_both_directions(shape: LlamaShape) -> None:
    ours, theirs = same_model_twice(shape, "sdpa", torch.float32)
    other = build(shape, seed=4, dtype=torch.float32)
    other.load_state_dict(theirs.state_dict(), strict=True)
    values = other.state_dict()
    assert all(torch.equal(values[name], value) for name, value in ours.state_dict().items())


def test_the_default_shape_has_the_names_and_sizes_of_hugging_face() -> None:
    with torch.device("meta"):
        ours = Llama(LlamaShape())
        theirs = LlamaForCausalLM(hugging_face_config(LlamaShape()))

    def sizes(model: nn.Module) -> dict[str, torch.Size]:
        return {name: value.shape for name, value in model.state_dict().items()}

    assert sizes(ours) == sizes(theirs)
