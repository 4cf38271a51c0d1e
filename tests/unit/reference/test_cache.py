"""A token after the others, by what is remembered of them, is what the whole sequence gives it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.cache import KeyValueCache, empty_cache
from llmb.reference.data import random_tokens
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, Gpt2Shape, LlamaShape, Shape, UngatedLlamaShape

GROUPED = LlamaShape(
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    sequence_length=16,
    initializer_range=0.15,  # 1 / sqrt(hidden_size): attention is far from uniform
)
SHAPES: dict[str, LlamaShape | Gpt2Shape] = {
    "multi_head": replace(GROUPED, num_key_value_heads=4),
    "grouped_query": GROUPED,
    "multi_query": replace(GROUPED, num_key_value_heads=1),
    "ungated": UngatedLlamaShape(**vars(GROUPED)),
    "gpt2": Gpt2Shape(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=4,
        sequence_length=16,
        max_position_embeddings=32,
        initializer_range=0.15,
    ),
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
LENGTH = 14


def tokens(shape: Shape) -> Tensor:
    return random_tokens(2, 3, LENGTH, shape.vocab_size)


def decoded(model: nn.Module, ids: Tensor, cache: KeyValueCache, parts: list[int]) -> Tensor:
    """Return the logits after each of ``parts`` tokens, given one part after the other."""
    logits, at = [], 0
    with torch.no_grad():
        for part in parts:
            positions = torch.arange(at, at + part)
            logits.append(model(ids[:, at : at + part], cache=cache, positions=positions))
            at += part
    return torch.stack(logits, dim=1)


@every_shape
@pytest.mark.parametrize(
    "parts", [[1] * LENGTH, [5] + [1] * 9, [5, 4, 1, 4], [LENGTH]], ids=["1", "5,1", "5,4", "all"]
)
def test_part_after_part_gives_the_logits_of_the_whole_sequence(
    shape: Shape, parts: list[int]
) -> None:
    model, ids = build(shape, seed=1, dtype=torch.float64), tokens(shape)
    cache = empty_cache(shape, 3, LENGTH + 3, torch.float64)
    ends = torch.tensor(parts).cumsum(0) - 1
    torch.testing.assert_close(
        decoded(model, ids, cache, parts), model(ids)[:, ends], rtol=1e-12, atol=1e-12
    )


@every_shape
def test_in_bfloat16_it_is_as_close_to_float64_as_the_whole_sequence_is(shape: Shape) -> None:
    model, ids = build(shape, seed=1, dtype=torch.bfloat16), tokens(shape)
    exact = build(shape, seed=1, dtype=torch.float64)
    exact.load_state_dict(model.state_dict())
    cache = empty_cache(shape, 3, LENGTH, torch.bfloat16)
    truth, whole = exact(ids), model(ids)
    error = (decoded(model, ids, cache, [1] * LENGTH) - truth).norm()
    assert error < 1.1 * (whole - truth).norm()


@every_shape
def test_under_autocast_the_cache_is_in_the_narrower_format(shape: Shape) -> None:
    model, ids = build(shape, seed=1, dtype=torch.float32), tokens(shape)
    cache = empty_cache(shape, 3, LENGTH, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        logits = decoded(model, ids, cache, [5] + [1] * 9)
        whole = model(ids)[:, 4:]
    assert logits.dtype == torch.bfloat16
    assert (logits - whole).norm() < 0.03 * whole.norm()


@every_shape
def test_what_lies_in_the_cache_beyond_a_token_is_not_seen_by_it(shape: Shape) -> None:
    model, ids = build(shape, seed=1, dtype=torch.float64), tokens(shape)
    clean, other = (empty_cache(shape, 3, LENGTH + 3, torch.float64) for _ in range(2))
    for tensor in other.tensors():
        tensor.normal_(generator=torch.Generator().manual_seed(1))
    parts = [5] + [1] * 9
    assert torch.equal(decoded(model, ids, clean, parts), decoded(model, ids, other, parts))


@every_shape
def test_every_token_of_the_past_is_seen(shape: Shape) -> None:
    model, ids = build(shape, seed=1, dtype=torch.float64), tokens(shape)
    last = decoded(model, ids, empty_cache(shape, 3, LENGTH, torch.float64), [LENGTH])
    for place in range(LENGTH):
        other = ids.clone()
        other[:, place] = (other[:, place] + 1) % shape.vocab_size
        changed = decoded(
            model, other, empty_cache(shape, 3, LENGTH, torch.float64), [5] + [1] * 9
        )[:, -1:]
        assert ((changed - last).norm(dim=-1) > 1e-6 * last.norm(dim=-1)).all(), place


@every_shape
def test_clearing_keeps_the_memory_and_forgets_the_rest(shape: Shape) -> None:
    model, ids = build(shape, seed=1, dtype=torch.float32), tokens(shape)
    cache = empty_cache(shape, 3, LENGTH, torch.float32)
    decoded(model, ids, cache, [LENGTH])
    before = [tensor.data_ptr() for tensor in cache.tensors()]
    assert all(tensor.any() for tensor in cache.tensors())
    cache.clear()
    assert not any(tensor.any() for tensor in cache.tensors())
    assert [tensor.data_ptr() for tensor in cache.tensors()] == before


@every_shape
def test_decoding_leaves_no_trace_in_what_is_trained(shape: Shape) -> None:
    ids = tokens(shape)

    def trained(model: nn.Module) -> list[Tensor]:
        loss = model(ids, labels=ids)
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters())]

    alone = build(shape, seed=1, dtype=torch.float32)
    used = build(shape, seed=1, dtype=torch.float32)
    names = list(used.state_dict())
    decoded(used, ids, empty_cache(shape, 3, LENGTH, torch.float32), [5] + [1] * 9)
    assert list(used.state_dict()) == names
    assert not list(used.buffers())
    assert all(map(torch.equal, trained(used), trained(alone)))


def test_the_cache_has_the_heads_of_keys_and_not_of_queries() -> None:
    cache = empty_cache(GROUPED, 3, 20, torch.bfloat16)
    assert len(cache.keys) == len(cache.values) == GROUPED.num_hidden_layers
    assert {tensor.shape for tensor in cache.tensors()} == {(3, 2, 20, 12)}


def test_a_model_of_fewer_layers_than_the_cache_has_is_not_run() -> None:
    model = build(GROUPED, seed=1, dtype=torch.float32)
    cache = empty_cache(replace(GROUPED, num_hidden_layers=4), 1, 4, torch.float32)
    with pytest.raises(ValueError, match="longer"):
        model(torch.zeros(1, 1, dtype=torch.int64), cache=cache, positions=torch.tensor([0]))


def test_a_model_that_sees_what_follows_has_no_cache() -> None:
    with pytest.raises(AssertionError, match="after"):
        empty_cache(BertShape(), 1, 4, torch.float32)
