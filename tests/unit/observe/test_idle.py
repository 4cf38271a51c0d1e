"""How much of a parameter needs no work: nothing of a trained one, most of a pruned one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmb.observe.idle import idle_share

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
