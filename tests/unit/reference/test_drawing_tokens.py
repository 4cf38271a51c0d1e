"""The exponential race draws as ``torch.multinomial`` draws, and a wrong race would be seen."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from llmb.reference.generate import Draw, exponential_race, multinomial, probabilities

WORDS, DRAWS = 20, 200_000
#: 99.9 % quantile of chi-square with 19 degrees of freedom (NIST Engineering Statistics Handbook,
#: 1.3.6.7.4): of a thousand seeds one is expected beyond it.
LIMIT = 43.820


def logits() -> Tensor:
    """Return the logits of probabilities between 0.2 % and 30 %, so that every count is large."""
    return torch.linspace(-2.5, 2.5, WORDS)


@cache
def counts(draw: Draw, seed: int) -> Tensor:
    torch.manual_seed(seed)
    drawn = draw(logits().expand(DRAWS, -1))
    assert drawn.shape == (DRAWS, 1)
    assert drawn.dtype == torch.int64
    return drawn.flatten().bincount(minlength=WORDS).double()


def chi_square(found: Tensor) -> float:
    """Return Pearson's statistic of ``found`` against the probabilities."""
    expected = probabilities(logits().double()) * found.sum()
    assert expected.min() > 100
    return ((found - expected) ** 2 / expected).sum().item()


def two_samples(a: Tensor, b: Tensor) -> float:
    """Return Pearson's statistic of two samples of the same size against each other."""
    return ((a - b) ** 2 / (a + b)).sum().item()


@pytest.mark.parametrize("draw", [exponential_race, multinomial])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tokens_are_drawn_with_their_probabilities(draw: Draw, seed: int) -> None:
    assert chi_square(counts(draw, seed)) < LIMIT


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_ways_of_drawing_have_the_same_distribution(seed: int) -> None:
    assert two_samples(counts(exponential_race, seed), counts(multinomial, seed + 100)) < LIMIT


def test_a_race_of_uniform_times_would_be_seen() -> None:
    def wrong(values: Tensor) -> Tensor:
        p = probabilities(values)
        return (p / torch.rand_like(p)).argmax(dim=-1, keepdim=True)

    assert chi_square(counts(wrong, 1)) > 10 * LIMIT


def test_a_temperature_of_1_02_would_be_seen() -> None:
    assert chi_square(counts(lambda values: exponential_race(values / 1.02), 1)) > LIMIT


@pytest.mark.parametrize("draw", [exponential_race, multinomial])
def test_a_seed_gives_the_same_draws_again_and_another_seed_others(draw: Draw) -> None:
    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return draw(logits().expand(64, -1))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("draw", [exponential_race, multinomial])
def test_a_token_without_probability_is_never_drawn(draw: Draw) -> None:
    torch.manual_seed(1)
    values = torch.tensor([0.0, float("-inf"), 0.0, -200.0])
    assert set(draw(values.expand(10_000, -1)).flatten().tolist()) == {0, 2}


def test_probabilities_of_bfloat16_logits_are_in_float32() -> None:
    values = logits().bfloat16()
    assert torch.equal(probabilities(values), values.float().softmax(-1))
    assert probabilities(values).dtype == torch.float32
