"""Megatron's indexed tokens: ``<prefix>.bin`` has the tokens, ``<prefix>.idx`` has the offsets.

All numbers are little-endian. The .idx: 9 bytes of magic; u64 version; u8 dtype code; u64 N, the
number of sequences; u64 D, the number of marks; int32[N] tokens of each sequence; int64[N] first
byte of each sequence in the .bin; int64[D] first sequence of each document, and N as the last
mark. The .bin: the tokens in sequence order, without a header. Example: dtype code 8 is uint16.

The format is ``MMapIndexedDataset`` of Megatron-LM and of Megatron-DeepSpeed. The data of the 1T
workload have this format.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmb.errors import UsageError
from llmb.inputs.files import mapped, readable, size_of

MAGIC, VERSION = b"MMIDIDX\x00\x00", 1
LEGACY_MAGIC = b"TNTIDX\x00\x00"
#: Magic, version, code of the dtype, N, D: 34 bytes.
HEADER = struct.Struct("<9sQBQQ")
#: Code -> dtype of the tokens.
DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
#: Number of values checked at once: arrays of billions of values never fit in memory.
_CHUNK = 2**20


@dataclass(frozen=True)
class Indexed:
    """A checked pair of files."""

    #: The path without ".bin" and ".idx".
    prefix: Path
    #: numpy's name with its byte order, such as "<u2".
    dtype: str
    sequences: int
    documents: int
    tokens: int

    def read(self) -> npt.NDArray[Any]:
        """Return all tokens ``[tokens]``, mapped."""
        return mapped(with_suffix(self.prefix, ".bin"), self.dtype, self.tokens)


def with_suffix(prefix: Path, suffix: str) -> Path:
    """Return ``prefix`` with ``suffix`` appended. Example: ``a.b`` with ``.idx`` is ``a.b.idx``."""
    return Path(f"{prefix}{suffix}")


def without_suffix(path: Path) -> Path:
    """Return ``path`` without a trailing .bin or .idx."""
    return Path(str(path)[:-4]) if path.name[-4:] in (".bin", ".idx") else path


def open_indexed(prefix: Path) -> Indexed:
    """Check ``<prefix>.idx`` against ``<prefix>.bin`` and return their description.

    Raises:
        UsageError: a file is missing, the header has a different format, or a size, an offset or
            a mark of a document does not fit the files.
    """
    index, data = with_suffix(prefix, ".idx"), with_suffix(prefix, ".bin")
    code, sequences, marks = _header(index)
    # Check the length before using N and D: the numbers come from an untrusted file.
    expected, size = HEADER.size + 12 * sequences + 8 * marks, size_of(index)
    if size != expected:
        raise UsageError(
            f"{str(index)!r} has {size:,} bytes; its header, with {sequences:,} sequences and "
            f"{marks:,} marks of documents, makes it {expected:,}: it is cut short or damaged"
        )
    dtype = np.dtype(DTYPES[code])
    tokens = _check_sequences(index, sequences, dtype.itemsize, size_of(data))
    _check_documents(index, sequences, marks)
    return Indexed(prefix, DTYPES[code], sequences, marks - 1, tokens)


def _header(index: Path) -> tuple[int, int, int]:
    """Return the dtype code, N and D."""
    size_of(index)
    with readable(index), index.open("rb") as stream:
        head = stream.read(HEADER.size)
    name = repr(str(index))
    if head.startswith(LEGACY_MAGIC):
        raise UsageError(
            f"{name} has the legacy format TNTIDX of fairseq and early Megatron, which is not "
            "read: convert it with Megatron, or pack the text anew with `llmb data pack`"
        )
    if not head.startswith(MAGIC):
        raise UsageError(f"{name} begins with {head[:9]!r}, not with {MAGIC!r}: no indexed tokens")
    if len(head) < HEADER.size:
        raise UsageError(f"{name} ends within its header of {HEADER.size} bytes: cut short")
    _, version, code, sequences, marks = HEADER.unpack(head)
    if version != VERSION:
        raise UsageError(f"{name} has version {version} of the format; llmb reads version 1")
    if code in _FLOATS:
        raise UsageError(f"{name} holds {_FLOATS[code]} (dtype code {code}): tokens are integers")
    if code not in DTYPES:
        raise UsageError(f"{name} has the dtype code {code}; known are {_codes()}")
    return code, sequences, marks


def _codes() -> str:
    return ", ".join(f"{code} ({np.dtype(dtype).name})" for code, dtype in DTYPES.items())


def _check_sequences(index: Path, count: int, itemsize: int, data_size: int) -> int:
    """Return the total number of tokens, after a check of every size and every offset."""
    sizes = mapped(index, "<i4", count, HEADER.size)
    offsets = mapped(index, "<i8", count, HEADER.size + 4 * count)
    end, name = 0, repr(str(index))
    for first in range(0, count, _CHUNK):
        size = sizes[first : first + _CHUNK].astype(np.int64)
        if (negative := np.flatnonzero(size < 0)).size:
            at = int(negative[0])
            raise UsageError(f"{name}: sequence {first + at} has {size[at]} tokens: damaged")
        starts = end + np.cumsum(size) * itemsize - size * itemsize
        offset = offsets[first : first + _CHUNK]
        if (wrong := np.flatnonzero(offset != starts)).size:
            at = int(wrong[0])
            raise UsageError(
                f"{name}: sequence {first + at} begins at byte {offset[at]} of the .bin; the "
                f"sizes before it make it byte {starts[at]}: damaged"
            )
        end = int(starts[-1] + size[-1] * itemsize)
        if end > data_size:  # stop before hostile sizes can overflow the sum
            break
    if end != data_size:
        said = "more than" if end > data_size else "exactly"
        raise UsageError(
            f"{name} describes {said} {end:,} bytes of tokens and the .bin beside it has "
            f"{data_size:,}: it is cut short, or belongs to another .idx"
        )
    return end // itemsize


def _check_documents(index: Path, sequences: int, count: int) -> None:
    name = repr(str(index))
    marks = mapped(index, "<i8", count, HEADER.size + 12 * sequences)
    if count == 0 or marks[0] != 0 or marks[-1] != sequences:
        ends = f"from {marks[0]} to {marks[-1]}" if count else "over nothing"
        raise UsageError(f"{name}: its documents go {ends}, not from 0 to {sequences}: damaged")
    for first in range(0, count, _CHUNK):
        part = marks[first : first + _CHUNK + 1]  # + 1: neighbouring chunks share a mark
        if (wrong := np.flatnonzero(part[1:] < part[:-1])).size:
            at = first + int(wrong[0])
            raise UsageError(f"{name}: document {at} ends before it begins: damaged")
