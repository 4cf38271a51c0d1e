"""Read sampled elements of tensors sharded over ranks (DTensor), as if the tensors were full.

Public functions also accept a tensor that is not sharded, and then use the tensor as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llmb.observe.places import SampledIndices
from llmb.parallel.shards import first_of, is_elsewhere, is_spread, local

#: Of each mesh dimension whose ranks hold copies: the coordinate of this rank, and all ranks.
Copies = tuple[tuple[int, int], ...]


def read(places: SampledIndices, value: Tensor, turn: int = 0) -> Tensor:
    """Return the elements of ``value`` at ``places``; zero for elements that other ranks show.

    The sum over all ranks is the result, because exactly one rank shows each element. Example: of
    [5, 7], rank 0 returns [5, 0] and rank 1 returns [0, 7]. ``turn``: see ``shows``.
    """
    if not is_spread(value):
        return places.read(value)
    part = local(value)
    found = torch.zeros(places.count, dtype=part.dtype, device=part.device)
    if not shows(copies_of(value), turn) or not part.numel():
        return found
    where = torch.stack(torch.unravel_index(places.indices(), value.shape))
    first = torch.tensor(first_of(value)).unsqueeze(1)
    size = torch.tensor(part.shape).unsqueeze(1)
    mine = ((where >= first) & (where < first + size)).all(0)
    inside = tuple(i.to(part.device) for i in (where - first)[:, mine])
    found[mine.to(part.device)] = part[inside]
    return found


def range_of(value: Tensor) -> range | None:
    """Return the range of the elements of ``value`` that this rank has, in row-major order.

    Example: elements 512 to 1,023 of a matrix of 1,024 on the second of two ranks. None if the
    shard consists of columns: column elements are not contiguous. Empty if another rank has
    all elements, for example the rank of another stage.
    """
    if is_elsewhere(value):
        return range(0)
    if not is_spread(value):
        return range(value.numel())
    part, first = local(value), first_of(value)
    if not part.numel():
        return range(0)
    if part.shape[1:] != value.shape[1:]:
        return None
    begin = first[0] * value.shape[1:].numel() if first else 0
    return range(begin, begin + part.numel())


def read_range(
    places: SampledIndices, value: Tensor, shown: range, zeros: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the elements that ``read`` returns, in pieces to be joined.

    ``shown`` is the ``range_of`` the value, if this rank shows it. ``zeros[n]`` has n zeros, for
    each n up to the count of ``places``; slicing a single tensor of zeros in each call took a
    third of the time.
    """
    before, mine = places.within(shown)
    if not mine.count:
        return (zeros[places.count],)
    found = mine.read(local(value))
    if mine.count == places.count:
        return (found,)
    return zeros[before], found, zeros[places.count - before - mine.count]


def read_places(
    wanted: Sequence[tuple[SampledIndices, Tensor]], *, lazy: bool, turn: int = 0
) -> list[Tensor]:
    """Return the sampled elements of each tensor; ``turn``: see ``shows``.

    A ``lazy`` device compiles the operations of a step. There the indices are a tensor input: as
    Python constants, every new choice of indices would recompile.
    """
    if not lazy or not wanted:
        return [read(places, value, turn) for places, value in wanted]
    where = torch.cat([places.indices() for places, _ in wanted]).to(wanted[0][1].device)
    parts = torch.split(where, [places.count for places, _ in wanted])
    return [value.reshape(-1)[part] for (_, value), part in zip(wanted, parts, strict=True)]


def copies_of(value: Tensor) -> Copies:
    """Return the coordinates of this rank among the ranks with the same part of ``value``."""
    if not is_spread(value):
        return ()
    spread: Any = value
    mesh, coordinates = spread.device_mesh, spread.device_mesh.get_coordinate()
    if coordinates is None:
        return ((-1, 1),)  # no part at all
    return tuple(
        (coordinate, mesh.size(dimension))
        for dimension, (coordinate, placement) in enumerate(
            zip(coordinates, spread.placements, strict=True)
        )
        if placement.is_replicate()
    )


def shows(copies: Copies, turn: int) -> bool:
    """Tell whether this rank shows its part in ``turn``: one of the ranks with a copy does.

    ``turn`` is a drawn number, which no rank knows before the reading. So each copy is checked now
    and then. Example: the moments of the second of two replicas in half of the steps.
    """
    for own, count in copies:
        turn, drawn = divmod(turn, count)
        if own != drawn:
            return False
    return True
