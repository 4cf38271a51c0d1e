"""The reference Qwen3 against an implementation written by others: Hugging Face's, same weights.

As of Llama, the library's islands of float32 are widened to float64 where 1e-12 is asked for.
"""

from __future__ import annotations

import os
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.reference.cache import empty_cache
from llmb.reference.data import random_tokens
from llmb.reference.models import build, model_of
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.workloads import WORKLOADS
from tests import needs
from tests.parity.decoding import decoded, generated

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: E402
from transformers.models.qwen3 import modeling_qwen3  # noqa: E402

#: Heads of 24 where hidden size / heads is 16; attention is far from uniform.
UNTIED = Qwen3Shape(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,
    initializer_range=0.125,
)
SHAPES = {
    "untied": UNTIED,
    "tied": TiedQwen3Shape(**vars(UNTIED)),
    "as_many_key_heads": replace(UNTIED, num_key_value_heads=4, rope_theta=1e4),
    "smaller_heads": replace(UNTIED, head_dim=8, rms_norm_eps=1e-5),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def hugging_face_config(shape: Qwen3Shape, attention: str = "sdpa") -> Qwen3Config:
    return Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=isinstance(shape, TiedQwen3Shape),
        attn_implementation=attention,
    )


def same_model_twice(shape: Qwen3Shape, attention: str) -> tuple[nn.Module, Qwen3ForCausalLM]:
    """Return ours and theirs with the same weights; norm gains are random, so their place shows."""
    ours = build(shape, seed=1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    for name, parameter in ours.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.normal_(1.0, 0.3, generator=generator)
    theirs = Qwen3ForCausalLM(hugging_face_config(shape, attention)).to(torch.float64)
    there = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert there.unexpected_keys == []
    tied = isinstance(shape, TiedQwen3Shape)
    assert there.missing_keys == (["lm_head.weight"] if tied else [])
    return ours, theirs


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Return the Frobenius norm of the difference over that of ``theirs``."""
    return ((ours - theirs).norm() / theirs.norm()).item()


def errors_of(ours: nn.Module, theirs: Any, ids: Tensor) -> dict[str, float]:
    """Return the errors of logits, loss and every gradient, by name."""
    expected = theirs(ids, labels=ids, use_cache=False)
    expected.loss.backward()
    loss = ours(ids, labels=ids)
    loss.backward()
    found = {
        "logits": relative_error(ours(ids), expected.logits),
        "loss": relative_error(loss, expected.loss),
    }
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        found[name] = relative_error(parameter.grad, gradients.pop(name))
    assert not gradients, f"gradients only Hugging Face has: {sorted(gradients)}"
    return found


@pytest.fixture
def _float64_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen the library's float32 islands to float64."""

    def norm(self: Any, x: Tensor) -> Tensor:
        mean = x.pow(2).mean(-1, keepdim=True)
        found: Tensor = self.weight * x * torch.rsqrt(mean + self.variance_epsilon)
        return found

    def tables(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        theta, width = self.config.rope_parameters["rope_theta"], self.config.head_dim
        inverse = 1.0 / theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    def loss(self: Any, logits: Tensor, labels: Tensor, **_: object) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    def softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return x.softmax(dim)  # without the library's dtype=float32

    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", norm)
    monkeypatch.setattr(modeling_qwen3.Qwen3RotaryEmbedding, "forward", tables)
    monkeypatch.setattr(
        Qwen3ForCausalLM, "loss_function", property(lambda self: loss.__get__(self))
    )
    monkeypatch.setattr(F, "softmax", softmax)


@every_shape
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.usefixtures("_float64_library")
def test_in_float64_logits_loss_and_gradients_agree_to_1e_12(
    shape: Qwen3Shape, attention: str
) -> None:
    ours, theirs = same_model_twice(shape, attention)
    found = errors_of(ours, theirs, random_tokens(3, 3, 64, shape.vocab_size))
    name, error = max(found.items(), key=itemgetter(1))
    assert error < 1e-12, name


@every_shape
def test_in_float64_they_agree_to_float32_with_the_library_as_it_is(shape: Qwen3Shape) -> None:
    ours, theirs = same_model_twice(shape, "sdpa")
    found = errors_of(ours, theirs, random_tokens(3, 3, 32, shape.vocab_size))
    assert max(found.values()) < 1e-6


@pytest.mark.parametrize("kind", ["q", "k"])
@pytest.mark.usefixtures("_float64_library")
def test_without_one_norm_they_would_differ(kind: str) -> None:
    ours, theirs = same_model_twice(UNTIED, "sdpa")
    for each in ours.modules():
        if hasattr(each, f"{kind}_norm"):
            setattr(each, f"{kind}_norm", nn.Identity())
    ids = random_tokens(3, 3, 32, UNTIED.vocab_size)
    assert relative_error(ours(ids), theirs(ids, use_cache=False).logits) > 0.01


@every_shape
@pytest.mark.usefixtures("_float64_library")
def test_with_a_cache_the_same_tokens_are_generated(shape: Qwen3Shape) -> None:
    ours, theirs = same_model_twice(shape, "sdpa")
    prompt = random_tokens(3, 3, 7, shape.vocab_size)
    _, chosen = decoded(ours, empty_cache(shape, 3, 32, torch.float64), prompt, 20)
    assert torch.equal(chosen, generated(theirs, prompt, 20))


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b"])
def test_the_workloads_have_the_names_and_sizes_of_hugging_face(name: str) -> None:
    shape = WORKLOADS[name].shape
    assert isinstance(shape, Qwen3Shape)
    with torch.device("meta"):
        ours, theirs = model_of(shape), Qwen3ForCausalLM(hugging_face_config(shape))
    sizes = [
        {n: p.shape for n, p in model.named_parameters()}  # a tied head counts once
        for model in (ours, theirs)
    ]
    assert sizes[0] == sizes[1]
