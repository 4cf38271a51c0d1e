"""Which elements are looked at: as many as there are, spread over the whole, drawn by a seed."""

from __future__ import annotations

import pytest
import torch

from llmb.observe.places import SampledIndices, choose, choose_each, picked
from llmb.observe.shard_places import read_places
from llmb.records.places import fewer


class Subclass(torch.Tensor):
    """What a plugin may put in the place of a parameter: its own functions decide."""


SIZES = (1, 2, 100, 257, 258, 400, 1024, 1025, 5000, 10**6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 257, 1024])
def test_as_many_elements_are_chosen_as_wanted_or_as_there_are_each_once(
    size: int, count: int
) -> None:
    for seed in range(20):
        found = choose(seed, "state", "w", size, count).indices()
        assert len(found) == len(found.unique()) == min(size, count)
        assert 0 <= found.min() <= found.max() < size


@pytest.mark.parametrize(
    ("parameters", "count"), [(1, 257), (128, 257), (129, 255), (580, 56), (10**6, 1)]
)
def test_of_many_parameters_each_shows_fewer_elements(parameters: int, count: int) -> None:
    assert fewer(257, parameters) == count


@pytest.mark.parametrize("size", [257, 100])
def test_of_a_small_parameter_all_elements_are_chosen_in_order(size: int) -> None:
    assert choose(3, "state", "w", size, 257).indices().tolist() == list(range(size))


def test_a_single_element_is_drawn_too() -> None:
    """Of thousands of stored parameters each shows one element: which must not be known before."""
    shape = torch.Size((10, 100))
    each = [
        (choose(seed, "state", "w", 1000, 1), *choose_each(seed, [shape], 1)) for seed in range(9)
    ]
    for found in zip(*each, strict=True):
        assert {places.count for places in found} == {1}
        assert len({places.first for places in found}) > 5
        assert all(0 <= places.first < 1000 for places in found)


def test_a_parameter_without_elements_has_no_places() -> None:
    assert choose(3, "state", "w", 0, 257).count == 0


def test_elements_are_spread_over_at_least_half_of_the_parameter() -> None:
    for seed in range(200):
        found = choose(seed, "gradient", "w", 10**6, 1024).indices()
        assert found.max() - found.min() >= 0.49e6


SHAPES = [(32000, 64), (3200, 3200), (6400, 3200), (100, 63), (7,), (3200,), (1,), (40, 30)]


def test_each_parameter_has_as_many_places_as_wanted_or_as_there_are_each_once() -> None:
    shapes = [torch.Size(shape) for shape in SHAPES]
    for seed in range(50):
        for shape, places in zip(shapes, choose_each(seed, shapes, 64), strict=True):
            found = places.indices()
            assert len(found) == len(found.unique()) == min(64, shape.numel())
            assert 0 <= found.min() <= found.max() < shape.numel()


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 1])
def test_no_two_places_of_a_parameter_are_in_one_column_if_it_has_enough(
    shape: tuple[int, int],
) -> None:
    """An honest run was accused: all 64 places of a head were in one column, whose sum cancels."""
    for seed in range(200):
        (places,) = choose_each(seed, [torch.Size(shape)], 64)
        assert len((places.indices() % shape[1]).unique()) >= min(64, shape[1]) * 0.9


def test_half_of_the_places_is_every_second_one() -> None:
    (places,) = choose_each(3, [torch.Size((40, 30))], 7)
    assert places.every_other().indices().tolist() == places.indices()[::2].tolist()


def test_over_seeds_any_element_may_be_looked_at() -> None:
    seen = set()
    for seed in range(4000):
        seen |= set(choose(seed, "state", "w", 1000, 16).indices().tolist())
    assert seen == set(range(1000))


def test_places_follow_from_seed_purpose_and_name() -> None:
    places = {
        choose(seed, what, name, 10**6, 257)
        for seed in (1, 2)
        for what in ("state", "gradient")
        for name in ("a", "b")
    }
    assert len(places) == 8
    assert choose(1, "state", "a", 10**6, 257) == choose(1, "state", "a", 10**6, 257)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_read_are_the_elements_of_those_numbers_whatever_the_memory(
    dtype: torch.dtype,
) -> None:
    value = torch.arange(600).view(20, 30).to(dtype)
    transposed = value.t().contiguous().t()
    wide = torch.zeros(20, 60, dtype=dtype)
    wide[:, ::2] = value
    where = choose(7, "state", "w", 600, 50)
    expected = value.flatten()[where.indices()]
    behind = torch.cat([torch.zeros(7, dtype=dtype), value.flatten()])[7:].view(20, 30)
    for form in (value, transposed, wide[:, ::2], value.view(5, 4, 30), behind, Subclass(value)):
        assert torch.equal(where.read(form), expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_several_tensors_are_read_alike_on_every_kind_of_device(lazy: bool) -> None:
    one, other = torch.arange(600.0).view(20, 30), torch.arange(7.0).view(7, 1).t()
    wanted = [(choose(7, "state", "a", 600, 50), one), (choose(7, "state", "b", 7, 50), other)]
    found = read_places(wanted, lazy=lazy)
    assert [part.tolist() for part in found] == [
        value.flatten()[places.indices()].tolist() for places, value in wanted
    ]
    assert read_places([], lazy=lazy) == []


def test_of_contiguous_memory_a_view_is_read_and_no_copy_made() -> None:
    value = torch.zeros(600)
    found = SampledIndices(first=3, stride=7, count=50).read(value)
    value += 1
    assert found.tolist() == [1.0] * 50


def test_the_last_element_can_be_read() -> None:
    assert (
        SampledIndices(first=9, stride=10, count=10).read(torch.arange(100.0)).tolist()[-1] == 99.0
    )


class Unindexed(torch.Tensor):
    """A device's tensor without a kernel for indices in a tensor."""

    def __getitem__(self, where: object) -> torch.Tensor:
        if isinstance(where, tuple) and any(isinstance(one, torch.Tensor) for one in where):
            raise NotImplementedError("aten::index.Tensor is not implemented for this device")
        return super().__getitem__(where)


def test_without_a_kernel_for_indices_the_same_elements_are_read_one_by_one() -> None:
    value = torch.arange(24.0).reshape(2, 3, 4)
    where = tuple(torch.unravel_index(torch.tensor([3, 23, 3, 11]), value.shape))
    found = picked(value.as_subclass(Unindexed), where)
    assert found.tolist() == picked(value, where).tolist() == [3, 23, 3, 11]


@pytest.mark.parametrize(
    ("part", "before", "first", "count"),
    [
        (range(5, 15), 1, 3, 2),
        (range(100), 0, 3, 4),
        (range(4, 8), 1, 4, 0),
        (range(19, 30), 4, 4, 0),
        (range(18, 19), 3, 0, 1),
        (range(0), 0, 3, 0),
    ],
    ids=str,
)
def test_places_within_a_part_are_counted_from_its_beginning(
    part: range, before: int, first: int, count: int
) -> None:
    assert SampledIndices(3, 5, 4).within(part) == (before, SampledIndices(first, 5, count))
