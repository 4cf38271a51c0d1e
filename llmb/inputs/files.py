"""Files of data: their sizes, digests and read-only maps; every trouble is told in one line."""

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

#: Of a large file this much is read at its beginning, and as much at its end.
END_BYTES = 2**20


def size_of(path: Path) -> int:
    """Return the bytes of a regular file (a link to one is followed).

    Raises:
        UsageError: no such file, or a folder, device or pipe: those could be read for ever.
    """
    with readable(path):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
        raise UsageError(f"{str(path)!r} is {kind}; give a file")
    return found.st_size


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what keeps the body from reading ``path`` into a UsageError."""
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

    All of a file of up to 2 MiB. Of a larger one the middle is not seen: terabytes are to be
    opened at once, and what changes them (another tokenizer, another order, an interrupted copy)
    shows at an end or in the size, which is compared beside this.
    """
    size = size_of(path)
    with readable(path), path.open("rb") as stream:
        digest = hashlib.sha256(stream.read(END_BYTES))
        stream.seek(max(END_BYTES, size - END_BYTES))
        digest.update(stream.read(END_BYTES))
    return digest.hexdigest()


def mapped(path: Path, dtype: str, count: int, offset: int = 0) -> npt.NDArray[Any]:
    """Return ``count`` values of the file from byte ``offset`` on, read-only and not yet read.

    Raises:
        UsageError: the file is shorter than that, or cannot be mapped.
    """
    if count == 0:  # nothing cannot be mapped
        return np.empty(0, dtype)
    with readable(path):
        # A map of less than the file would hide that the file was cut.
        end, size = offset + count * np.dtype(dtype).itemsize, os.path.getsize(path)
        if end > size:
            raise UsageError(f"{str(path)!r} has {size:,} bytes, fewer than the {end:,} expected")
        return np.memmap(path, dtype, mode="r", offset=offset, shape=(count,))
