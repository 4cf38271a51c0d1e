"""The reference GPT-2 against an implementation written by others: Hugging Face's, same weights."""

from __future__ import annotations

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.reference.cache import empty_cache
from llmb.reference.data import random_tokens
from llmb.reference.models import build, model_of
from llmb.reference.shapes import Gpt2Shape
from llmb.workloads import WORKLOADS
from tests import needs
from tests.parity.agreement import largest_error, shaken
from tests.parity.decoding import decoded, decoded_by_the_library, generated

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
needs.package("transformers")
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

SHAPE = Gpt2Shape(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=3,
    num_attention_heads=8,
    sequence_length=48,
    max_position_embeddings=64,
    initializer_range=0.125,  # 1 / sqrt(hidden_size): attention is far from uniform
)
both_attentions = pytest.mark.parametrize("attention", ["eager", "sdpa"])


def hugging_face_config(shape: Gpt2Shape, attention: str = "sdpa") -> GPT2Config:
    return GPT2Config(
        vocab_size=shape.vocab_size,
        n_embd=shape.hidden_size,
        n_inner=shape.intermediate_size,
        n_layer=shape.num_hidden_layers,
        n_head=shape.num_attention_heads,
        n_positions=shape.max_position_embeddings,
        layer_norm_epsilon=shape.layer_norm_epsilon,
        activation_function="gelu",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation=attention,
    )


def as_theirs(model: nn.Module, theirs: nn.Module) -> dict[str, Tensor]:
    """Return our weights as the library has them: matrices the other way round, the head twice."""
    turned = {n for n, m in theirs.named_modules() if isinstance(m, Conv1D)}
    values = {
        name: value.T if name.rpartition(".")[0] in turned and value.dim() == 2 else value
        for name, value in model.state_dict().items()
    }
    return {**values, "lm_head.weight": values["transformer.wte.weight"]}


@pytest.fixture
def float64_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library from computing the loss of a float64 model in float32."""

    def loss(self: nn.Module, logits: Tensor, labels: Tensor, **_: object) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    monkeypatch.setattr(GPT2LMHeadModel, "loss_function", property(lambda self: loss.__get__(self)))


def compared(attention: str, dtype: torch.dtype) -> tuple[str, float]:
    """Return what differs most: logits, loss, or a gradient by its name."""
    ours = shaken(build(SHAPE, seed=1, dtype=dtype))
    theirs = GPT2LMHeadModel(hugging_face_config(SHAPE, attention)).to(dtype)
    theirs.load_state_dict(as_theirs(ours, theirs), strict=True)
    ids = random_tokens(3, 3, SHAPE.sequence_length, SHAPE.vocab_size)
    shown = theirs(ids, labels=ids, use_cache=False)
    shown.loss.backward()
    loss = ours(ids, labels=ids)
    loss.backward()
    expected = {n: p.grad for n, p in theirs.named_parameters()}
    turned = {n for n, m in theirs.named_modules() if isinstance(m, Conv1D)}
    gradients = {
        n: p.grad.T if n.rpartition(".")[0] in turned and p.dim() == 2 else p.grad
        for n, p in ours.named_parameters()
    }
    return largest_error(
        {"logits": ours(ids), "loss": loss, **gradients},
        {"logits": shown.logits, "loss": shown.loss, **expected},
    )


@both_attentions
def test_in_float64_logits_loss_and_gradients_agree_with_the_library_as_it_is(attention) -> None:
    name, error = compared(attention, torch.float64)
    assert error < 1e-6, name


@both_attentions
@pytest.mark.usefixtures("float64_loss")
def test_in_float64_they_agree_to_1e_12_with_a_float64_loss(attention) -> None:
    name, error = compared(attention, torch.float64)
    assert error < 1e-12, name


@both_attentions
def test_in_float64_cached_decoding_agrees_and_generates_the_same_tokens(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    softmax = F.softmax  # the library's eager attention keeps it in float32
    monkeypatch.setattr(F, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
    ours = shaken(build(SHAPE, seed=1, dtype=torch.float64))
    theirs = GPT2LMHeadModel(hugging_face_config(SHAPE, attention)).double()
    theirs.load_state_dict(as_theirs(ours, theirs), strict=True)
    prompt = random_tokens(3, 3, 7, SHAPE.vocab_size)
    found, chosen = decoded(ours, empty_cache(SHAPE, 3, 32, torch.float64), prompt, 20)
    assert torch.equal(chosen, generated(theirs, prompt, 20))
    expected = decoded_by_the_library(theirs, torch.cat((prompt, chosen), dim=1), 7)
    error = float((found - expected).norm() / expected.norm())
    assert error < 1e-10, error


@pytest.mark.parametrize("name", ["gpt2-125m", "gpt2-1.5b"])
def test_the_workloads_have_the_names_and_sizes_of_hugging_face(name: str) -> None:
    shape = WORKLOADS[name].shape
    assert isinstance(shape, Gpt2Shape)
    with torch.device("meta"):
        ours, theirs = model_of(shape), GPT2LMHeadModel(hugging_face_config(shape))
    sizes = {n: v.shape for n, v in as_theirs(ours, theirs).items()}
    assert sizes == {n: v.shape for n, v in theirs.state_dict().items()}
