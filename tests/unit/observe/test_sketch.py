"""A sketch keeps lengths and distances, whatever part of a tensor differs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llmb.observe import sketch as module
from llmb.observe.sketch import SIDE, side_for, sketch

SHAPE = (96, 160)
SEEDS = range(150)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def dense(seed: int) -> Tensor:
    return random(*SHAPE, seed=seed)


def one_row(seed: int) -> Tensor:
    found = torch.zeros(SHAPE)
    found[seed % SHAPE[0]] = random(SHAPE[1], seed=seed)
    return found


def one_column(seed: int) -> Tensor:
    found = torch.zeros(SHAPE)
    found[:, seed] = random(SHAPE[0], seed=seed)
    return found


def sparse(seed: int) -> Tensor:
    found = torch.zeros(SHAPE)
    where = torch.randperm(found.numel(), generator=torch.Generator().manual_seed(seed))
    found.view(-1)[where[:20]] = random(20, seed=seed)
    return found


def rank_one(seed: int) -> Tensor:
    return random(SHAPE[0], 1, seed=seed) * random(1, SHAPE[1], seed=seed + 1000)


def uniform(seed: int) -> Tensor:
    return torch.ones(SHAPE)


def one_uniform_row(seed: int) -> Tensor:
    return torch.ones(SHAPE) * (torch.arange(SHAPE[0]) == seed % SHAPE[0])[:, None]


def one_uniform_column(seed: int) -> Tensor:
    return torch.ones(SHAPE) * (torch.arange(SHAPE[1]) == seed)


def distance(one: Tensor, other: Tensor) -> float:
    return float(torch.dist(one.double(), other.double()))


@pytest.mark.parametrize(
    ("difference", "rms"),
    [
        (dense, 0.03),
        (sparse, 0.03),
        (one_row, 0.13),
        (one_column, 0.13),
        (one_uniform_row, 0.13),
        (one_uniform_column, 0.13),
        (rank_one, 0.19),
        (uniform, 0.19),
    ],
)
def test_the_distance_of_two_sketches_is_that_of_the_tensors_within_the_stated_error(
    difference: Callable[[int], Tensor], rms: float
) -> None:
    base = random(*SHAPE, seed=77)
    ratios = []
    for seed in SEEDS:
        other = base + difference(seed)
        found = distance(sketch(base, seed, "w"), sketch(other, seed, "w"))
        ratios.append(found / distance(base, other))
    assert math.sqrt(sum((ratio - 1) ** 2 for ratio in ratios) / len(ratios)) < rms
    assert abs(sum(ratio**2 for ratio in ratios) / len(ratios) - 1) < 0.1, "right on average"
    assert 0.4 < min(ratios) < max(ratios) < 2.0


@pytest.mark.parametrize(
    ("parameters", "side"), [(1, 32), (111, 32), (160, 32), (161, 31), (580, 16), (10**6, 1)]
)
def test_where_parameters_are_many_each_has_a_smaller_square(parameters: int, side: int) -> None:
    assert side_for(parameters) == side
    assert parameters * side**2 <= max(160 * 32**2, parameters)
    assert len(sketch(random(*SHAPE), 5, "w", side)) == side**2


def test_smaller_squares_are_right_on_average_and_off_by_one_part_in_their_side() -> None:
    base, ratios = random(*SHAPE, seed=77), []
    for seed in SEEDS:
        other = base + dense(seed)
        found = distance(sketch(base, seed, "w", 16), sketch(other, seed, "w", 16))
        ratios.append(found / distance(base, other))
    assert math.sqrt(sum((ratio - 1) ** 2 for ratio in ratios) / len(ratios)) < 1 / 16
    assert abs(sum(ratio**2 for ratio in ratios) / len(ratios) - 1) < 0.1


def test_one_wrong_element_among_many_is_seen_at_its_full_size() -> None:
    base = random(*SHAPE).double()
    other = base.clone()
    other[70, 3] += 0.125
    found = distance(sketch(base, 5, "w"), sketch(other, 5, "w"))
    assert found == pytest.approx(0.125, rel=1e-3)


@pytest.mark.parametrize("shape", [(1,), (1024,), (32, 32), (3, 5), (0,), ()])
def test_what_is_no_larger_than_a_sketch_is_kept_as_it_is(shape: tuple[int, ...]) -> None:
    value = random(*shape)
    assert torch.equal(sketch(value, 1, "w"), value.flatten())


@pytest.mark.parametrize(
    "shape", [(1025,), (1040,), (3200,), (33, 32), (2000, 1), (1, 2000), (7, 11, 17), (40, 4000)]
)
def test_of_any_larger_shape_there_are_at_most_a_thousand_numbers(shape: tuple[int, ...]) -> None:
    value = random(*shape)
    found = sketch(value, 1, "w")
    assert found.shape == (SIDE * SIDE,)
    assert (found.dtype, found.device.type) == (torch.float32, "cpu")
    assert distance(found, torch.zeros(SIDE * SIDE)) == pytest.approx(float(value.norm()), rel=0.35)


def test_sketches_of_parts_add_up_to_the_sketch_of_their_sum() -> None:
    one, other = random(*SHAPE), random(*SHAPE, seed=1)
    together = sketch(one, 3, "w") + sketch(other, 3, "w")
    torch.testing.assert_close(sketch(one + other, 3, "w"), together, rtol=1e-5, atol=1e-4)


def test_signs_follow_from_seed_and_name_and_nothing_else() -> None:
    value = random(*SHAPE)
    torch.manual_seed(1)
    first = sketch(value, 3, "w")
    torch.manual_seed(2)
    assert torch.equal(sketch(value, 3, "w"), first)
    assert not torch.equal(sketch(value, 4, "w"), first)
    assert not torch.equal(sketch(value, 3, "v"), first)


def test_a_difference_made_to_vanish_under_one_seed_shows_under_others() -> None:
    """Two elements that fall into one sum with signs that cancel; nobody knows the seed before."""
    shows = []
    for seed in range(40):
        hidden = torch.zeros(SHAPE)
        hidden[0, 0], hidden[0, SIDE] = 1.0, 1.0
        shows.append(float(sketch(hidden, seed, "w").norm()))
    assert {round(length) for length in shows} == {0, 2}
    assert 8 < sum(length > 1 for length in shows) < 32


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_sketch_of_narrow_numbers_is_that_of_the_same_numbers_in_float32(
    dtype: torch.dtype,
) -> None:
    value = random(*SHAPE).to(dtype)
    torch.testing.assert_close(
        sketch(value, 3, "w"), sketch(value.float(), 3, "w"), rtol=1e-5, atol=1e-4
    )


def test_taking_a_tensor_in_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    value = random(300, 70)
    whole = sketch(value, 3, "w")
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", 64 * 70)
    torch.testing.assert_close(sketch(value, 3, "w"), whole, rtol=1e-6, atol=1e-5)


def test_a_transposed_tensor_is_sketched_by_its_shape_and_not_its_memory() -> None:
    value = random(*SHAPE)
    other = value.t().contiguous().t()
    assert other.stride() != value.stride()
    assert torch.equal(sketch(other, 3, "w"), sketch(value, 3, "w"))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_stays_visible(bad: float) -> None:
    value = random(*SHAPE)
    value[40, 40] = bad
    assert not torch.isfinite(sketch(value, 3, "w")).all()


def test_a_small_tensor_is_copied_for_its_memory_may_be_written_later() -> None:
    gradient = torch.ones(8)
    kept = sketch(gradient, 1, "norm")
    gradient.zero_()
    assert kept.tolist() == [1.0] * 8
