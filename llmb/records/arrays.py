"""Numbers out of safetensors files without torch: float32 arrays as sequences of floats."""

from __future__ import annotations

import json
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

Array = Sequence[float]
Arrays = Mapping[str, Array]
#: Of one array: a sample of 1,024 elements of each of 4,096 parameters.
MAX_ELEMENTS = 4 * 2**20
_CHUNK = 2**24


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 array of a safetensors file, flat, by name; others are left out.

    Raises:
        ValueError: not a safetensors file, or an array too long to be a sample.
    """
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    for name, entry in found:
        if len(entry["data"]) > 4 * MAX_ELEMENTS:
            raise ValueError(f"array {name!r} has more than {MAX_ELEMENTS} numbers")
    return {
        name: memoryview(bytes(entry["data"])).cast("f")
        for name, entry in sorted(found, key=itemgetter(0))  # the library gives them in any order
        if entry["dtype"] == "F32"
    }


@dataclass(frozen=True)
class Form:
    """Type and shape of an array in a safetensors file, in the library's words: F32, I64, ..."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def forms(data: bytes) -> dict[str, Form]:
    """Return type and shape of every array of a safetensors file, by name.

    Raises:
        ValueError: not a safetensors file.
    """
    try:
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    return {name: Form(entry["dtype"], tuple(entry["shape"])) for name, entry in found}


@dataclass(frozen=True)
class FileArray:
    """Where an array of float32 lies in a safetensors file: read when it is asked for."""

    path: Path
    shape: tuple[int, ...]
    #: In bytes from the start of the file.
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return (self.end - self.begin) // 4

    def sample(self, most: int) -> Array:
        """Return at most ``most`` of its numbers, equally far apart; all where they are fewer."""
        values = array("f")
        with self.path.open("rb") as file:
            file.seek(self.begin)
            values.fromfile(file, self.elements)
        if sys.byteorder == "big":
            values.byteswap()
        return values[:: max(1, -(-len(values) // most))]


def stored(path: Path) -> dict[str, FileArray]:
    """Return the float32 arrays of the safetensors file ``path``, which llmb has written."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found, data = {}, 8 + length
    for name, one in header.items():
        if one["dtype"] == "F32":
            begin, end = one["data_offsets"]
            found[name] = FileArray(path, tuple(one["shape"]), data + begin, data + end)
    return found


def write(tensors: Mapping[str, FileArray], target: Path, about: Mapping[str, str]) -> None:
    """Copy ``tensors`` into one safetensors file, whose metadata are ``about``.

    Eight bytes with the length of the header, a JSON header, then the numbers, as
    https://huggingface.co/docs/safetensors has it.
    """
    header: dict[str, Any] = {"__metadata__": dict(about)}
    total = 0
    for name, one in tensors.items():
        offsets = [total, total + one.end - one.begin]
        header[name] = {"dtype": "F32", "shape": one.shape, "data_offsets": offsets}
        total = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in tensors.values():
            with one.path.open("rb") as source:
                source.seek(one.begin)
                left = one.end - one.begin
                while left:
                    left -= file.write(source.read(min(left, _CHUNK)))
