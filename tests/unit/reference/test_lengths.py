"""Dynamic shapes: lengths follow from the step's seed, and padding is not trained on."""

from __future__ import annotations

import pytest
import torch

from llmb.reference.data import make_batch, random_tokens
from llmb.reference.lengths import SHORTEST, draw_lengths
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import Gpt2Shape, LlamaShape


def test_lengths_are_a_function_of_the_seed_alone() -> None:
    assert draw_lengths(5, 8, 300) == draw_lengths(5, 8, 300)
    assert draw_lengths(5, 8, 300) != draw_lengths(6, 8, 300)


def test_lengths_are_drawn_from_ten_to_the_longest_both_included() -> None:
    drawn = [n for seed in range(200) for n in draw_lengths(seed, 4, 14)]
    assert {*drawn} == set(range(SHORTEST, 15))
    assert SHORTEST == 10
    mean = sum(draw_lengths(1, 4000, 2048)) / 4000
    assert abs(mean - 1029) < 40


@pytest.mark.parametrize("longest", [2, 9, 10])
def test_where_sequences_are_no_longer_than_ten_all_are_the_longest(longest: int) -> None:
    assert draw_lengths(1, 3, longest) == [longest] * 3


@pytest.mark.parametrize("kind", [LlamaShape, Gpt2Shape])
def test_sequences_are_padded_with_token_0_that_is_no_target(kind: type) -> None:
    shape, lengths = kind(vocab_size=97, sequence_length=16), [12, 10, 14]
    batch = make_batch(3, 3, shape, lengths=lengths)
    tokens = random_tokens(3, 3, 16, 97)
    assert batch.ids.shape == batch.labels.shape == (3, 14)
    for row, length in enumerate(lengths):
        assert torch.equal(batch.ids[row, :length], tokens[row, :length])
        assert torch.equal(batch.labels[row, :length], tokens[row, :length])
        assert (batch.ids[row, length:] == 0).all()
        assert (batch.labels[row, length:] == -100).all()


def test_parts_of_a_padded_batch_keep_their_own_labels(shape: LlamaShape) -> None:
    batch = make_batch(3, 4, shape, lengths=[12, 10, 14, 11])
    first, second = batch.split(2)
    assert torch.equal(torch.cat([first.labels, second.labels]), batch.labels)
    assert (first.labels == -100).any()


def test_the_loss_of_a_padded_batch_is_that_of_its_sequences_by_themselves(
    shape: LlamaShape,
) -> None:
    model: Llama = build(shape, seed=1, dtype=torch.float64)
    lengths = [12, 10, 16]
    batch = make_batch(3, 3, shape, lengths=lengths)
    together = model(batch.ids, labels=batch.labels)
    alone = [
        model(batch.ids[row : row + 1, :n], labels=batch.ids[row : row + 1, :n])
        for row, n in enumerate(lengths)
    ]
    targets = [n - 1 for n in lengths]
    mean = sum(n * one for n, one in zip(targets, alone, strict=True)) / sum(targets)
    assert float(together.detach()) == pytest.approx(float(mean.detach()), rel=1e-12)


def test_no_gradient_comes_from_padding(shape: LlamaShape) -> None:
    found = []
    for filler in (0, 5):
        model = build(shape, seed=1, dtype=torch.float64)
        batch = make_batch(3, 2, shape, lengths=[12, 16])
        ids = batch.ids.clone()
        ids[0, 12:] = filler
        model(ids, labels=batch.labels).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-15)
