"""Parts of the model, as pipeline and tensor parallelism cut them, still compute the whole."""

from __future__ import annotations

import copy
from collections.abc import Collection

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.llama import Attention, Llama, rotary_tables
from llmb.reference.shapes import LlamaShape


def stage(model: Llama, layers: Collection[str], *, first: bool, last: bool) -> Llama:
    """Return a copy of ``model`` reduced to one pipeline stage."""
    part = copy.deepcopy(model)
    for name in set(part.model.layers) - set(layers):
        del part.model.layers[name]
    if not first:
        part.model.embed_tokens = None
    if not last:
        part.model.norm = None
        part.lm_head = None
    return part


@pytest.fixture
def two_stages(model: Llama) -> tuple[Llama, Llama]:
    return (
        stage(model, ["0"], first=True, last=False),
        stage(model, ["1", "2", "3"], first=False, last=True),
    )


def test_the_stages_names_are_disjoint_and_together_the_models(
    model: Llama, two_stages: tuple[Llama, Llama]
) -> None:
    front, back = (set(part.state_dict()) for part in two_stages)
    assert front | back == set(model.state_dict())
    assert not front & back


def test_two_stages_composed_give_bit_identical_logits(
    model: Llama, two_stages: tuple[Llama, Llama], ids: Tensor
) -> None:
    front, back = two_stages
    assert torch.equal(back(front(ids)), model(ids))


def test_a_middle_stage_with_neither_embedding_nor_head_composes_too(
    model: Llama, ids: Tensor
) -> None:
    front = stage(model, ["0"], first=True, last=False)
    middle = stage(model, ["1", "2"], first=False, last=False)
    back = stage(model, ["3"], first=False, last=True)
    assert torch.equal(back(middle(front(ids))), model(ids))


def test_gradients_across_the_stage_boundary_are_bit_identical(
    model: Llama, two_stages: tuple[Llama, Llama], ids: Tensor
) -> None:
    front, back = two_stages
    sent = front(ids)
    received = sent.detach().requires_grad_()
    back(received, labels=ids).backward()
    sent.backward(received.grad)
    model(ids, labels=ids).backward()
    parts = dict(front.named_parameters()) | dict(back.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parts[name].grad, parameter.grad), name


def head_shard(whole: Attention, rank: int, count: int) -> Attention:
    """Return the ``rank``-th of ``count`` equal groups of heads: rows of q, k, v; columns of o."""
    part = copy.deepcopy(whole)
    for projection in (part.q_proj, part.k_proj, part.v_proj):
        projection.weight = nn.Parameter(projection.weight.chunk(count, dim=0)[rank])
    part.o_proj.weight = nn.Parameter(part.o_proj.weight.chunk(count, dim=1)[rank])
    return part


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_outputs_of_two_halves_of_the_heads_add_up_to_the_whole(kv_heads: int) -> None:
    shape = LlamaShape(hidden_size=48, num_attention_heads=4, num_key_value_heads=kv_heads)
    generator = torch.Generator().manual_seed(5)
    whole = Attention(shape).double()
    for parameter in whole.parameters():
        parameter.data.normal_(0.0, 0.15, generator=generator)
    x = torch.randn(2, 16, 48, dtype=torch.float64, generator=generator)
    cos, sin = rotary_tables(x, shape.head_dim, shape.rope_theta)
    total = sum(head_shard(whole, rank, 2)(x, cos, sin) for rank in range(2))
    torch.testing.assert_close(total, whole(x, cos, sin), rtol=1e-12, atol=1e-14)
