"""Writes indexed tokens: a pair of files (.bin and .idx) appears complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from llmb.errors import RunFailedError, UsageError
from llmb.inputs.indexed import DTYPES, HEADER, MAGIC, VERSION, with_suffix

#: Vocabularies of 65,500 tokens and more are written as int32: Megatron's limit.
_UINT16_BELOW = 65500
#: The format holds the tokens of a sequence as int32.
_LONGEST = 2**31 - 1
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_for(vocab_size: int) -> str:
    """Return the dtype of tokens, chosen like Megatron. Example: ``<u2`` for 50,257 tokens."""
    return "<u2" if vocab_size < _UINT16_BELOW else "<i4"


class IndexedWriter:
    """Writes a pair of files in ``folder``, document by document."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Create ``folder``/bin; ``dtype`` is a value of ``DTYPES``, such as ``<u2``."""
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._code = _CODES[dtype]
        self._data = (folder / "bin").open("xb")
        self._sizes, self._marks = array("i"), array("q", [0])
        self._open = 0
        self.tokens = 0
        #: Number of omitted documents: documents without tokens.
        self.empty = 0

    @property
    def documents(self) -> int:
        """The number of finished documents."""
        return len(self._marks) - 1

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Append tokens to the open document; the caller has checked that the tokens fit."""
        self._data.write(ids.astype(self._dtype).tobytes())
        self._open += len(ids)
        self.tokens += len(ids)

    def end_document(self, eos: int | None = None) -> None:
        """End the document with the token ``eos``, if given; omit an empty document.

        A document of more than 2^31 - 1 tokens becomes several sequences.
        """
        if not self._open:
            self.empty += 1
            return
        if eos is not None:
            self.add(np.array([eos]))
        while self._open > _LONGEST:
            self._sizes.append(_LONGEST)
            self._open -= _LONGEST
        self._sizes.append(self._open)
        self._open = 0
        self._marks.append(len(self._sizes))

    def close(self) -> None:
        """Write ``folder``/idx, and flush both files to the disk."""
        sizes = np.array(self._sizes, "<i4")
        ends = np.cumsum(sizes, dtype=np.int64) * self._dtype.itemsize
        offsets = ends - sizes.astype(np.int64) * self._dtype.itemsize
        with (self._folder / "idx").open("xb") as index:
            counts = (len(sizes), len(self._marks))
            index.write(HEADER.pack(MAGIC, VERSION, self._code, *counts))
            index.write(sizes.tobytes())
            index.write(offsets.astype("<i8").tobytes())
            index.write(np.array(self._marks, "<i8").tobytes())
            _to_disk(index)
        _to_disk(self._data)
        self._data.close()

    def abandon(self) -> None:
        """Close the open file."""
        self._data.close()


@contextmanager
def writing(prefix: Path, dtype: str, *, force: bool) -> Iterator[IndexedWriter]:
    """Yield a writer; after the body, move the files to ``<prefix>.bin`` and ``<prefix>.idx``.

    Raises:
        UsageError: a target file exists without ``force``, or the folder is not writable.
        RunFailedError: a write failed; no temporary file remains.
    """
    _check_free(prefix, force)
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".llmb-", dir=prefix.parent))
    except OSError as error:
        raise UsageError(f"cannot write in {str(prefix.parent)!r}: {error.strerror}") from None
    try:
        writer = IndexedWriter(folder, dtype)
        try:
            yield writer
            writer.close()
        finally:
            writer.abandon()
        _check_free(prefix, force)
        _move(folder, prefix)
    except OSError as error:
        raise RunFailedError(
            f"cannot write {str(prefix)!r}: {error.strerror or error}; make room or choose another "
            "--output"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _to_disk(stream: IO[bytes]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _check_free(prefix: Path, force: bool) -> None:
    for suffix in (".bin", ".idx"):
        path = with_suffix(prefix, suffix)
        if path.is_dir() or (os.path.lexists(path) and not force):
            raise UsageError(f"{str(path)!r} is there already: choose another --output, or --force")


def _move(folder: Path, prefix: Path) -> None:
    """Move both files into place; remove the old .idx first, to never pair it with new tokens."""
    with_suffix(prefix, ".idx").unlink(missing_ok=True)
    os.replace(folder / "bin", with_suffix(prefix, ".bin"))
    os.replace(folder / "idx", with_suffix(prefix, ".idx"))
