"""Data files: sizes, digests and read-only memory maps; every error is a message of one line."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from llmb.errors import UsageError

#: Bytes read at the beginning and at the end of a large file: 1 MiB each.
END_BYTES = 2**20


def size_of(path: Path) -> int:
    """Return the size in bytes of a regular file, or of the target of a link.

    Raises:
        UsageError: no file, or a folder, device or pipe: reading might never end. Example:
            /dev/zero.
    """
    with readable(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise UsageError(f"{str(path)!r} is {kind}; give a file")
    return found.st_size


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of reading ``path`` in the body into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except ValueError as error:  # a zero byte in a path, a map longer than its file
        raise UsageError(f"cannot read {str(path)!r}: {error}") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of the whole file, as hexadecimal digits."""
    digest = hashlib.sha256()
    size_of(path)
    with readable(path), path.open("rb") as stream:
        while piece := stream.read(END_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def sha256_of_ends(path: Path) -> str:
    """Return the SHA-256 of the first and the last MiB of the file.

    A file of up to 2 MiB is read in full. The middle of a larger file is not read, because files of
    terabytes must open at once. Usual changes, such as a different tokenizer, a different order or
    an interrupted copy, show at the ends or in the size. The size is compared separately.
    """
    size = size_of(path)
    with readable(path), path.open("rb") as stream:
        digest = hashlib.sha256(stream.read(END_BYTES))
        stream.seek(max(END_BYTES, size - END_BYTES))
        digest.update(stream.read(END_BYTES))
    return digest.hexdigest()


def mapped(path: Path, dtype: str, count: int, offset: int = 0) -> npt.NDArray[Any]:
    """Return ``count`` values of the file from byte ``offset`` on, memory-mapped and read-only.

    Raises:
        UsageError: the file is too short, or cannot be mapped.
    """
    if count == 0:  # an empty range cannot be mapped
        return np.empty(0, dtype)
    with readable(path):
        # A shortened map would hide a truncated file.
        end, size = offset + count * np.dtype(dtype).itemsize, os.path.getsize(path)
        if end > size:
            raise UsageError(f"{str(path)!r} has {size:,} bytes, fewer than the {end:,} expected")
        return np.memmap(path, dtype, mode="r", offset=offset, shape=(count,))
