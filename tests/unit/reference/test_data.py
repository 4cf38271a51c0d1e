"""Tokens are a function of the seed, fresh for each seed, and uniform over the vocabulary."""

from __future__ import annotations

from itertools import pairwise

import torch

from llmb.reference.data import random_tokens


def test_the_same_seed_gives_the_same_tokens_whatever_the_global_state() -> None:
    torch.manual_seed(1)
    first = random_tokens(7, 4, 256, 32000)
    torch.manual_seed(2)
    assert torch.equal(random_tokens(7, 4, 256, 32000), first)


def test_drawing_tokens_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    random_tokens(7, 4, 256, 32000)
    assert torch.equal(torch.get_rng_state(), before)


def test_tokens_of_different_seeds_agree_no_more_often_than_chance() -> None:
    draws = [random_tokens(seed, 16, 256, 100).flatten() for seed in range(20)]
    for earlier, later in pairwise(draws):
        agreement = (earlier == later).float().mean().item()
        assert abs(agreement - 0.01) < 0.008  # five standard deviations of 4096 draws


def test_sequences_of_one_batch_differ() -> None:
    assert len(random_tokens(7, 16, 256, 32000).unique(dim=0)) == 16


def test_tokens_are_uniform_over_the_vocabulary() -> None:
    vocab_size, count = 1000, 256 * 1024
    seen = random_tokens(7, 1024, 256, vocab_size).flatten().bincount(minlength=vocab_size)
    expected = count / vocab_size
    chi_square = ((seen - expected) ** 2 / expected).sum().item()
    freedom = vocab_size - 1
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_no_token_is_outside_the_vocabulary_and_both_ends_occur() -> None:
    tokens = random_tokens(7, 64, 256, 50)
    assert (tokens.min().item(), tokens.max().item()) == (0, 49)


def test_tokens_are_int64_batch_by_sequence_on_the_cpu() -> None:
    tokens = random_tokens(7, 3, 5, 11)
    assert (tokens.shape, tokens.dtype, tokens.device.type) == ((3, 5), torch.int64, "cpu")
