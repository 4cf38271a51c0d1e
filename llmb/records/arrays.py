"""Numbers out of safetensors files without torch: float32 arrays as sequences of floats."""

from __future__ import annotations

import hashlib
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
#: Of one file, in a header of about 100 bytes an array. The largest honest one, of a model with 580
#: parameters, has 2,523 arrays: with 4,096 parameters it would have 18,000.
MAX_ARRAYS = 50_000
MAX_HEADER_BYTES = 8 * 2**20
#: So many different numbers make a file's content one that no other run has by chance.
_TELLING = 64
#: Of each array, in bytes, to find so many.
_LOOKED_AT = 2**14
_CHUNK = 2**24


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 array of a safetensors file, flat, by name; others are left out.

    Raises:
        ValueError: not a safetensors file, too many arrays, or one too long to be a sample.
    """
    found = _parsed(data)
    for name, entry in found:
        if len(entry["data"]) > 4 * MAX_ELEMENTS:
            raise ValueError(f"array {name!r} has more than {MAX_ELEMENTS} numbers")
    return {
        name: memoryview(bytes(entry["data"])).cast("f")
        for name, entry in sorted(found, key=itemgetter(0))  # the library gives them in any order
        if entry["dtype"] == "F32"
    }


def content_digest(data: bytes) -> str | None:
    """Return sha256, in hex, of the arrays in a safetensors file: name, dtype, shape and numbers.

    The order of the header, its blanks and metadata do not count. None for a file with fewer than
    64 different words of 4 bytes: two honest runs may both have written it.

    Raises:
        ValueError: not a safetensors file, or too many arrays.
    """
    found = sorted(_parsed(data), key=itemgetter(0))
    digest, words = hashlib.sha256(), set[int]()
    for name, entry in found:
        content = bytes(entry["data"])
        about = [name, entry["dtype"], entry["shape"], len(content)]
        digest.update(json.dumps(about).encode())
        digest.update(content)
        if len(words) < _TELLING:
            first = memoryview(content)[: min(len(content) // 4 * 4, _LOOKED_AT)]
            words.update(first.cast("I"))
    return digest.hexdigest() if len(words) >= _TELLING else None


def _parsed(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return name and ``dtype``, ``shape``, ``data`` of every array, in any order.

    The length of the header and the number of arrays are looked at first: parsing takes 2 kB and 50
    microseconds an array.
    """
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(
            f"not a safetensors file: a header of {length} bytes, more than {MAX_HEADER_BYTES}"
        )
    # Of an array the header has one object, and metadata are one: each has one opening bracket.
    # A name may hold brackets, too; those of llmb hold none.
    if data.count(b"{", 8, 8 + length) > MAX_ARRAYS + 2:
        raise ValueError(f"more than {MAX_ARRAYS} arrays")
    try:
        found: list[tuple[str, dict[str, Any]]]
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    return found


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
