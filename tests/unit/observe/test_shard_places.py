"""What each rank shows of a tensor that is spread: together they show every element once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from llmb.observe.places import SampledIndices, choose_each
from llmb.observe.shard_places import copies_of, range_of, read, read_range, shows
from llmb.simulation.private import fake_ranks

#: Rows that no number of ranks divides, and fewer rows than ranks.
SHAPES = [torch.Size([13, 8]), torch.Size([16, 6]), torch.Size([7]), torch.Size([1, 9])]
HOW: list[tuple[Sequence[int], Sequence[Placement], bool]] = [
    ([4], [Shard(0)], True),
    ([4], [Replicate()], True),
    ([2, 2], [Replicate(), Shard(0)], True),
    ([2, 2], [Shard(0), Shard(0)], True),
    ([3], [Shard(1)], False),
    ([2, 2], [Shard(0), Shard(1)], False),
]


def spread_over(whole: Tensor, ranks: Sequence[int], how: Sequence[Any]) -> DTensor:
    """Return ``whole`` as this rank of a mesh of ``ranks`` holds it."""
    mesh = init_device_mesh("cpu", tuple(ranks))
    size, first = compute_local_shape_and_global_offset(whole.shape, mesh, how)
    mine = tuple(slice(f, f + n) for f, n in zip(first, size, strict=True))
    return DTensor.from_local(
        whole[mine], mesh, how, run_check=False, shape=whole.shape, stride=whole.stride()
    )


@pytest.mark.parametrize(("ranks", "how", "in_rows"), HOW, ids=str)
def test_ranks_together_show_every_element_once(
    ranks: Sequence[int], how: Sequence[Placement], in_rows: bool
) -> None:
    of_columns = any(placement.is_shard(1) for placement in how)
    shapes = [shape for shape in SHAPES if len(shape) > 1 or not of_columns]
    world = torch.Size(ranks).numel()
    for shape, turn in itertools.product(shapes, range(5)):
        (places,) = choose_each(turn, [shape], 5)
        whole = torch.arange(1.0, shape.numel() + 1).view(shape)
        total = torch.zeros(places.count)
        for rank in range(world):
            with fake_ranks(rank, world):
                value = spread_over(whole, ranks, how)
                shown, slowly = range_of(value), read(places, value, turn)
                is_shown = shows(copies_of(value), turn)
                if in_rows:
                    assert shown is not None
                if not is_shown:
                    assert not slowly.any()
                elif shown is not None:
                    pieces = read_range(places, value, shown, [torch.zeros(n) for n in range(10)])
                    assert torch.equal(torch.cat(pieces), slowly)
                total += slowly
        assert torch.equal(total, whole.flatten()[places.indices()])


def test_each_copy_has_its_turn() -> None:
    how, turns = [Replicate(), Replicate()], range(4)
    for rank in turns:
        with fake_ranks(rank, 4):
            copies = copies_of(spread_over(torch.ones(4), [2, 2], how))
            assert sum(shows(copies, turn) for turn in turns) == 1


def test_a_parameter_of_another_stage_shows_nothing() -> None:
    value = torch.zeros(3, 4, device="meta")
    assert range_of(value) == range(0)


def test_a_tensor_that_is_not_spread_shows_all() -> None:
    value = torch.arange(12.0).view(3, 4)
    places = SampledIndices(1, 5, 3)
    assert range_of(value) == range(12)
    (found,) = read_range(places, value, range(12), [torch.zeros(n) for n in range(10)])
    assert found.tolist() == [1, 6, 11]
