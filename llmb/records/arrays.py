"""Numbers out of safetensors files without torch: arrays as sequences of floats.

Evidence is kept small (docs/adr/0057). 16-bit numbers are stored as bfloat16. An array that only
counts as a distance from another array is stored as the distance.
"""

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
#: Longest array, in elements: a sample of 1,024 elements of each of 4,096 parameters.
MAX_ELEMENTS = 4 * 2**20
#: Most arrays of a file; the header has about 100 bytes per array. Example: the largest honest
#: file, of a model with 580 parameters, has 2,523 arrays; 4,096 parameters would give 18,000.
MAX_ARRAYS = 50_000
MAX_HEADER_BYTES = 8 * 2**20
#: A file with 64 different numbers is unique: no other run has the same numbers by chance.
_TELLING = 64
#: Bytes of each array to search for 64 different numbers.
_LOOKED_AT = 2**14
_CHUNK = 2**24


#: The array that holds the float32 scales of all differences, in the order of the array names.
SCALES = "scales"
#: Bytes per number of each supported type.
_BYTES = {"F32": 4, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
#: A difference is stored in steps of 1/127 of the largest element.
_STEPS = 127


class Apart(tuple[float, ...]):
    """One number in place of an array: the distance of the array from the reference array."""

    @property
    def distance(self) -> float:
        """The L2 distance; infinite if the array had a NaN, or another length."""
        return self[0]


class ScaledDifference(tuple[float, ...]):
    """The worker's array minus the reference array, element by element."""


class Same(tuple[float, ...]):
    """An empty stand-in for an array with the same numbers as another array."""


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 or bfloat16 array of a safetensors file, flat, by name.

    Arrays of other types are left out.

    Raises:
        ValueError: not a safetensors file, too many arrays, or an array too long to be a sample.
    """
    return {
        name: _widened(entry) for name, entry in _checked(data) if entry["dtype"] in ("F32", "BF16")
    }


def read_integers(data: bytes) -> dict[str, Sequence[int]]:
    """Return every int32 or int64 array of a safetensors file, flat, by name.

    Arrays of other types are left out.

    Raises:
        ValueError: as ``read`` does.
    """
    found = dict[str, Sequence[int]]()
    for name, entry in _checked(data):
        if entry["dtype"] == "I32":
            found[name] = memoryview(bytes(entry["data"])).cast("i")
        elif entry["dtype"] == "I64":
            found[name] = memoryview(bytes(entry["data"])).cast("q")
    return found


def read_reduced(data: bytes) -> dict[str, Array]:
    """Return the arrays of ``read``, and the stand-ins of reduced arrays.

    A stand-in is ``Apart`` (float64, one number), ``ScaledDifference`` (int8, with a scale) or
    ``Same`` (uint8, without a number).

    Raises:
        ValueError: as ``read`` does, or a difference has no scale.
    """
    found, every = dict[str, Array](), _checked(data)
    scales = iter(next((_widened(one) for name, one in every if name == SCALES), ()))
    for name, entry in every:
        kind, content = entry["dtype"], bytes(entry["data"])
        if kind in ("F32", "BF16") and name != SCALES:
            found[name] = _widened(entry)
        elif kind == "F64" and len(content) == _BYTES[kind]:
            found[name] = Apart(memoryview(content).cast("d"))
        elif kind == "U8" and not content:
            found[name] = Same()
        elif kind == "I8":
            scale = next(scales, None)
            if scale is None:
                raise ValueError(f"array {name!r} has no scale")
            found[name] = ScaledDifference(scale * step for step in memoryview(content).cast("b"))
    return found


def resolved(right: Arrays, worker: Arrays) -> dict[str, Array]:
    """Return ``right`` with every difference from the ``worker``'s array turned into an array.

    Raises:
        ValueError: the worker's array is missing, or has another length.
    """
    found = dict[str, Array]()
    for name, one in right.items():
        if isinstance(one, ScaledDifference):
            pairs = zip(worker.get(name, ()), one, strict=True)
            found[name] = array("d", (shown - less for shown, less in pairs))
        else:
            found[name] = one
    return found


@dataclass(frozen=True)
class StoredArray:
    """One stored array: the type in the library's words (such as F32), the shape and the bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def packed(data: bytes) -> dict[str, StoredArray]:
    """Return every stored array of a safetensors file, by name.

    Raises:
        ValueError: not a safetensors file, or too many arrays.
    """
    return {
        name: StoredArray(entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in _parsed(data)
    }


def file_of(arrays: Mapping[str, StoredArray]) -> bytes:
    """Return a safetensors file of ``arrays``: wide types first, so every array is aligned."""
    turn = sorted(arrays.items(), key=lambda item: (-_BYTES[item[1].dtype], item[0]))
    header, end = dict[str, Any](), 0
    for name, one in turn:
        offsets = [end, end + len(one.data)]
        header[name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
        end = offsets[1]
    return _head(header) + b"".join(one.data for _, one in turn)


def _head(header: Mapping[str, Any]) -> bytes:
    """Return eight bytes with the length of the JSON header, and the header.

    The format is defined at https://huggingface.co/docs/safetensors.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def floats(shape: Sequence[int], values: Sequence[float]) -> StoredArray:
    """Return ``values`` as a float32 array; a value too large for float32 becomes infinite."""
    return StoredArray("F32", tuple(shape), array("f", values).tobytes())


def apart(distance: float) -> StoredArray:
    """Return the stand-in for an array at ``distance`` from the reference array."""
    return StoredArray("F64", (1,), array("d", [distance]).tobytes())


#: The stand-in for an array with the same numbers as another array.
SAME = StoredArray("U8", (0,), b"")


def difference(worker: Array, right: Array) -> tuple[StoredArray, float]:
    """Return ``worker`` less ``right`` in 8 bits, and the scale of one step.

    Both are finite and of one length. The largest element takes 127 steps, so each element is off
    by half a step at most. Example: the norm of 1,024 Gaussian elements changes by a share of 3e-5.
    """
    less = [one - other for one, other in zip(worker, right, strict=True)]
    scale = max(map(abs, less), default=0.0) / _STEPS
    (scale,) = array("f", [scale])  # rounded to float32, as stored
    steps = array("b", (round(one / scale) if scale else 0 for one in less))
    return StoredArray("I8", (len(less),), steps.tobytes()), scale


def as_bfloat16(one: StoredArray, *, rounded: bool = False) -> StoredArray:
    """Return a float32 array as bfloat16 if no number changes; else return the array unchanged.

    ``rounded``: round to the nearest bfloat16 numbers first, if all numbers are finite.
    """
    if one.dtype != "F32":
        return one
    data = bytearray(one.data)
    if rounded and all(map(math.isfinite, memoryview(one.data).cast("f"))):
        words = memoryview(data).cast("I")
        for n, word in enumerate(words):
            # Ties to even, like torch. A finite number never exceeds the largest finite number.
            words[n] = min(word + 0x7FFF + (word >> 16 & 1), (word & 0x80000000) + 0x7F7F0000)
            words[n] &= 0xFFFF0000
        words.release()
    zeros = len(data) // 4
    if data[0::4].count(0) < zeros or data[1::4].count(0) < zeros:
        return one
    short = bytearray(len(data) // 2)
    short[0::2], short[1::2] = data[2::4], data[3::4]
    return StoredArray("BF16", one.shape, bytes(short))


def values(one: StoredArray) -> Array:
    """Return the numbers of a float32 or bfloat16 array."""
    return _widened({"dtype": one.dtype, "data": one.data})


def _widened(entry: Mapping[str, Any]) -> Array:
    content = bytes(entry["data"])
    if entry["dtype"] == "BF16":
        wide = bytearray(2 * len(content))
        wide[2::4], wide[3::4] = content[0::2], content[1::2]
        content = bytes(wide)
    return memoryview(content).cast("f")


def _checked(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return the arrays of a file by name, none of them too long to be a sample."""
    found = _parsed(data)
    for name, entry in found:
        if len(entry["data"]) > _BYTES.get(entry["dtype"], 4) * MAX_ELEMENTS:
            raise ValueError(f"array {name!r} has more than {MAX_ELEMENTS} numbers")
    return found


def content_digest(data: bytes) -> str | None:
    """Return sha256, in hex, of the arrays in a safetensors file: name, dtype, shape and numbers.

    The order of the header, blanks and metadata do not count. None for a file with fewer than 64
    different words of 4 bytes: two honest runs may both have written the same file.

    Raises:
        ValueError: not a safetensors file, or too many arrays.
    """
    digest, words = hashlib.sha256(), set[int]()
    for name, entry in _parsed(data):
        content = bytes(entry["data"])
        about = [name, entry["dtype"], entry["shape"], len(content)]
        digest.update(json.dumps(about).encode())
        digest.update(content)
        if len(words) < _TELLING:
            first = memoryview(content)[: min(len(content) // 4 * 4, _LOOKED_AT)]
            words.update(first.cast("I"))
    return digest.hexdigest() if len(words) >= _TELLING else None


def _parsed(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Return name and ``dtype``, ``shape``, ``data`` of every array, by name.

    The length of the header and the number of arrays are checked before parsing: parsing takes 2 kB
    and 50 microseconds per array.
    """
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ValueError(
            f"not a safetensors file: a header of {length} bytes, more than {MAX_HEADER_BYTES}"
        )
    # The header has one object per array, and one for metadata: each has an opening bracket.
    # A name may hold brackets, too; names from llmb hold none.
    if data.count(b"{", 8, 8 + length) > MAX_ARRAYS + 2:
        raise ValueError(f"more than {MAX_ARRAYS} arrays")
    try:
        found: list[tuple[str, dict[str, Any]]]
        found = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise ValueError(f"not a safetensors file: {error}") from None
    return sorted(found, key=itemgetter(0))  # the library gives them in any order


@dataclass(frozen=True)
class Form:
    """Type and shape of an array in a safetensors file, in the library's words: F32, I64, ..."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def forms(data: bytes) -> dict[str, Form]:
    """Return type and shape of every array of a safetensors file, by name.

    Raises:
        ValueError: not a safetensors file, or too many arrays.
    """
    return {name: Form(entry["dtype"], tuple(entry["shape"])) for name, entry in _parsed(data)}


@dataclass(frozen=True)
class FileArray:
    """The location of a float32 array in a safetensors file, to be read on demand."""

    path: Path
    shape: tuple[int, ...]
    #: In bytes from the start of the file.
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return (self.end - self.begin) // 4

    def sample(self, most: int) -> Array:
        """Return at most ``most`` numbers at equal distances; all numbers of a short array."""
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
    """Copy ``tensors`` into one safetensors file with the metadata ``about``."""
    header: dict[str, Any] = {"__metadata__": dict(about)}
    total = 0
    for name, one in tensors.items():
        offsets = [total, total + one.end - one.begin]
        header[name] = {"dtype": "F32", "shape": one.shape, "data_offsets": offsets}
        total = offsets[1]
    with target.open("wb") as file:
        file.write(_head(header))
        for one in tensors.values():
            with one.path.open("rb") as source:
                source.seek(one.begin)
                left = one.end - one.begin
                while left:
                    left -= file.write(source.read(min(left, _CHUNK)))
