"""Numbers out of safetensors files without torch: arrays as sequences of floats.

Evidence is kept small (docs/adr/0057): 16-bit numbers are stored as bfloat16, and what counts as a
distance from something else alone is stored as that distance.
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


#: The array that holds the scales of all differences, float32, in the order of their names.
SCALES = "scales"
#: Bytes of one number, of the types that are read.
_BYTES = {"F32": 4, "BF16": 2, "F64": 8, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
#: A difference is stored in steps of its largest element over this.
_STEPS = 127


class Apart(tuple[float, ...]):
    """One number in the place of an array: its distance from the array that is right."""

    @property
    def distance(self) -> float:
        """The L2 distance; infinite where the array had a NaN, or another length."""
        return self[0]


class ScaledDifference(tuple[float, ...]):
    """What an array that is right is less than the worker's, element by element."""


class Same(tuple[float, ...]):
    """Nothing, in the place of an array whose numbers are those of another array."""


def read(data: bytes) -> dict[str, Array]:
    """Return every float32 or bfloat16 array of a safetensors file, flat, by name.

    Others are left out.

    Raises:
        ValueError: not a safetensors file, too many arrays, or one too long to be a sample.
    """
    return {
        name: _widened(entry) for name, entry in _checked(data) if entry["dtype"] in ("F32", "BF16")
    }


def read_reduced(data: bytes) -> dict[str, Array]:
    """Return the same, and what stands in the place of an array.

    That is ``Apart`` (float64, one number), ``ScaledDifference`` (int8, with its scale) or ``Same``
    (uint8, without a number).

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
    """Return ``right`` with arrays in the place of differences from the ``worker``'s.

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
    """One array as it is stored: its type in the library's words, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def packed(data: bytes) -> dict[str, StoredArray]:
    """Return every array of a safetensors file as it is stored, by name.

    Raises:
        ValueError: not a safetensors file, or too many arrays.
    """
    return {
        name: StoredArray(entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in sorted(_parsed(data), key=itemgetter(0))
    }


def file_of(arrays: Mapping[str, StoredArray]) -> bytes:
    """Return a safetensors file of ``arrays``: wide types first, so that each lies where it may."""
    turn = sorted(arrays.items(), key=lambda item: (-_BYTES[item[1].dtype], item[0]))
    header, end = dict[str, Any](), 0
    for name, one in turn:
        offsets = [end, end + len(one.data)]
        header[name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
        end = offsets[1]
    return _head(header) + b"".join(one.data for _, one in turn)


def _head(header: Mapping[str, Any]) -> bytes:
    """Return eight bytes with the length of the JSON header, and the header.

    So https://huggingface.co/docs/safetensors has it.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def floats(shape: Sequence[int], values: Sequence[float]) -> StoredArray:
    """Return ``values`` as a float32 array; what is too large for one is infinite."""
    return StoredArray("F32", tuple(shape), array("f", values).tobytes())


def apart(distance: float) -> StoredArray:
    """Return what stands in the place of an array so far from the one that is right."""
    return StoredArray("F64", (1,), array("d", [distance]).tobytes())


#: What stands in the place of an array that has the numbers of another one.
SAME = StoredArray("U8", (0,), b"")


def difference(worker: Array, right: Array) -> tuple[StoredArray, float]:
    """Return ``worker`` less ``right`` in 8 bits, and the scale of one step.

    Both are finite and of one length. The largest element takes 127 steps, so that each is off by
    half a step at most: the length of 1,024 Gaussian elements changes by 3e-5 of itself.
    """
    less = [one - other for one, other in zip(worker, right, strict=True)]
    scale = max(map(abs, less), default=0.0) / _STEPS
    (scale,) = array("f", [scale])  # as it is stored
    steps = array("b", (round(one / scale) if scale else 0 for one in less))
    return StoredArray("I8", (len(less),), steps.tobytes()), scale


def as_bfloat16(one: StoredArray, *, rounded: bool = False) -> StoredArray:
    """Return a float32 array as bfloat16 if all its numbers are such; any array otherwise as it is.

    ``rounded``: to the nearest number, if all are finite.
    """
    if one.dtype != "F32":
        return one
    data = bytearray(one.data)
    if rounded and all(map(math.isfinite, memoryview(one.data).cast("f"))):
        words = memoryview(data).cast("I")
        for n, word in enumerate(words):
            # To even, as torch does it. Nothing finite becomes more than the largest.
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
    found = sorted(_parsed(data), key=itemgetter(0))  # the library gives them in any order
    for name, entry in found:
        if len(entry["data"]) > _BYTES.get(entry["dtype"], 4) * MAX_ELEMENTS:
            raise ValueError(f"array {name!r} has more than {MAX_ELEMENTS} numbers")
    return found


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
    """Copy ``tensors`` into one safetensors file, whose metadata are ``about``."""
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
