"""How much of a parameter needs no work: nothing of a trained one, most of a pruned one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmb.audit.weights import MORE_ASLEEP, MOST_ASLEEP
from llmb.observe.idle import Activity, idle_share

STRENGTH = 0.02
SIZES = [(64, 64), (384, 64), (64, 384), (61, 48), (200, 190)]


def normal(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * STRENGTH


def fourth(size: int) -> int:
    return max(1, size // 4)


def zero_rows(w: Tensor) -> Tensor:
    w = w.clone()
    w[fourth(len(w)) :] = 0
    return w


def faint_columns(w: Tensor) -> Tensor:
    w = w.clone()
    w[:, fourth(w.shape[1]) :] *= 0.001
    return w


def low_rank(w: Tensor) -> Tensor:
    rank = fourth(min(w.shape))
    found = normal(len(w), rank, seed=2) @ normal(rank, w.shape[1], seed=3)
    return found * (STRENGTH / found.std())


def equal_columns(w: Tensor) -> Tensor:
    return w[:, torch.arange(w.shape[1]) % fourth(w.shape[1])]


def scaled_rows(w: Tensor) -> Tensor:
    """Return rows of which three of four are multiples of others."""
    copied = w[torch.arange(len(w)) % fourth(len(w))]
    return copied * torch.linspace(0.5, -2, len(w))[:, None]


def few_of_very_different_size(w: Tensor) -> Tensor:
    kept = zero_rows(w)
    return kept * torch.logspace(0, 6, len(w))[:, None] * torch.logspace(0, 6, w.shape[1])


@pytest.mark.parametrize("size", SIZES)
def test_random_and_trained_matrices_need_all_of_their_work(size: tuple[int, int]) -> None:
    first = normal(*size)
    usual = idle_share(first, STRENGTH)
    assert usual < 0.06
    one_direction = (
        0.01 * torch.outer(normal(size[0], seed=4), normal(size[1], seed=5)) / STRENGTH**2
    )
    assert idle_share(first + one_direction + normal(*size, seed=6) / 4, STRENGTH) < usual + 0.02
    assert idle_share(first.bfloat16(), STRENGTH) == pytest.approx(usual, abs=0.01)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "act", [zero_rows, faint_columns, low_rank, scaled_rows, few_of_very_different_size]
)
def test_what_a_plugin_need_not_compute_is_idle(
    act: Callable[[Tensor], Tensor], size: tuple[int, int]
) -> None:
    first = normal(*size)
    assert idle_share(act(first), STRENGTH) > idle_share(first, STRENGTH) + 0.08


def test_of_many_rows_some_are_looked_at() -> None:
    words = normal(2000, 64)
    assert idle_share(words, STRENGTH) < 0.01
    assert idle_share(zero_rows(words), STRENGTH) > 0.7


def test_equal_columns_are_idle() -> None:
    assert idle_share(equal_columns(normal(64, 64)), STRENGTH) > 0.6


def test_gains_near_zero_are_idle_and_others_are_not() -> None:
    gains = torch.ones(64) + normal(64)
    assert idle_share(gains, 1.0) == 0
    gains[:48] = 1e-4
    assert idle_share(gains, 1.0) == 0.75


def asleep(name: str, *parts: Tensor, words: int = 1000) -> float:
    """Return the share of the gradient ``parts`` of a parameter that sleeps."""
    activity = Activity(words)
    for part in parts:
        activity.add(name, part)
    return activity.asleep()[name]


def test_rows_and_columns_without_gradient_sleep() -> None:
    assert asleep("mlp.up_proj.weight", normal(384, 64)) == 0
    rows = normal(384, 64)
    rows[100:] *= 0.001
    assert asleep("mlp.up_proj.weight", rows) == pytest.approx(284 / 384)
    assert asleep("mlp.down_proj.weight", rows.t()) == pytest.approx(284 / 384)


def test_a_row_that_one_part_of_a_batch_needs_is_awake() -> None:
    halves = normal(64, 64), normal(64, 64, seed=2)
    halves[0][32:], halves[1][:32] = 0, 0
    assert asleep("o_proj.weight", halves[0]) == 0.5
    assert asleep("o_proj.weight", *halves) == 0


def test_words_without_a_gradient_and_small_gradients_of_queries_are_no_fault() -> None:
    table = normal(1000, 64)
    table[10:] = 0
    assert asleep("model.embed_tokens.weight", table) == 0
    assert asleep("lm_head.weight", table) == 0
    assert asleep("transformer.wpe.weight", table[:128]) == 0
    fused = normal(64, 192)
    fused[:, :128] *= 0.001
    assert asleep("transformer.h.0.attn.c_attn.weight", fused) == 0


def test_a_gradient_of_a_single_token_is_within_the_limit() -> None:
    for seed in range(20):
        outer = normal(64, 1, seed=seed) @ normal(1, 768, seed=seed + 100)
        assert asleep("pooler.dense.weight", outer) < MOST_ASLEEP + MORE_ASLEEP / 8


def test_vectors_and_narrow_matrices_are_not_looked_at() -> None:
    activity = Activity(1000)
    activity.add("norm.weight", torch.zeros(64))
    activity.add("token_type.weight", torch.zeros(2, 64))
    assert activity.asleep() == {}
