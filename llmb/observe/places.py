"""Choose the sampled elements of a parameter: at regular distances, which is cheap to read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from llmb.records.places import drawn_places

#: Elements per parameter: of the gradient for comparison with the reference, and of value, gradient
#: and moments for the replay of the optimizer step.
GRADIENTS, STATES = 256, 257
#: Elements: a multiple of the vector length of every processor.
VECTOR = 64
_PLAIN = (Tensor, nn.Parameter)


@dataclass(frozen=True, slots=True)
class SampledIndices:
    """Elements ``first``, ``first + stride``, ... of a parameter in row-major order."""

    first: int
    stride: int
    count: int

    def read(self, value: Tensor) -> Tensor:
        """Return the elements of ``value``, as a view if the memory layout allows."""
        if value.is_contiguous():
            if type(value) in _PLAIN:  # half the time of a slice
                begin = self.first + value.storage_offset()
                return value.as_strided((self.count,), (self.stride,), begin)
            flat = value.view(-1)
            return flat[self.first : self.first + self.stride * (self.count - 1) + 1 : self.stride]
        where = torch.unravel_index(self.indices(), value.shape)
        return picked(value, tuple(i.contiguous().to(value.device) for i in where))

    def every_other(self) -> SampledIndices:
        """Return every second element, starting with the first. Example: 32 of 64."""
        return SampledIndices(self.first, 2 * self.stride, (self.count + 1) // 2)

    def indices(self) -> Tensor:
        """Return the element indices, int64."""
        return self.first + self.stride * torch.arange(self.count)

    def within(self, part: range) -> tuple[int, SampledIndices]:
        """Return the number of elements before ``part``, and the elements inside ``part``.

        Indices inside are relative to the beginning of ``part``. Example: of 3, 8, 13, 18 one
        element comes before elements 5 to 14; inside are 8 and 13, returned as 3 and 8.
        """
        count, stride = self.count, self.stride
        before = min(count, max(0, -((self.first - part.start) // stride)))
        until = min(count, max(0, -((self.first - part.stop) // stride)))
        first = self.first + before * stride - part.start
        return before, SampledIndices(first, self.stride, until - before)


def picked(value: Tensor, where: tuple[Tensor, ...]) -> Tensor:
    """Return the elements of ``value`` at ``where``, indices by dimension on the same device.

    On a device without an indexing kernel, elements are read one by one, as views.
    """
    try:
        return value[where]
    except NotImplementedError:
        numbers = zip(*(dimension.tolist() for dimension in where), strict=True)
        return torch.stack([value[one] for one in numbers])


def choose_each(seed: int, shapes: Sequence[torch.Size], count: int) -> list[SampledIndices]:
    """Return ``count`` elements of each parameter of ``shapes`` (all elements of small ones).

    Like ``choose``, in half of the time: a digest of each name would be most of the cost.
    """
    drawn = drawn_places(seed, shapes, count)
    return [SampledIndices(first, stride, number) for first, stride, number in drawn]


def choose(seed: int, what: str, name: str, size: int, count: int) -> SampledIndices:
    """Return ``count`` of ``size`` elements of ``name`` (all if ``size`` is not larger)."""
    count = min(size, count)
    digest = hashlib.sha256(f"places:{seed}:{what}:{name}".encode()).digest()
    first, second = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:], "big")
    if count <= 1:
        return SampledIndices(second % max(1, size), 1, count)
    longest = (size - 1) // (count - 1)
    shortest = (longest + 1) // 2
    stride = shortest + first % (longest - shortest + 1)
    return SampledIndices(second % (size - stride * (count - 1)), stride, count)
