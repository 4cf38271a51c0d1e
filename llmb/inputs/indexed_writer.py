"""The writer of indexed tokens: a pair of files that appears whole or not at all."""

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

#: Vocabularies from here on are written as int32: Megatron's border, which leaves room to grow.
_UINT16_BELOW = 65500
#: The format holds the tokens of a sequence as int32.
_LONGEST = 2**31 - 1
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def dtype_for(vocab_size: int) -> str:
    """Return the dtype that tokens of a vocabulary are held in, as Megatron chooses it."""
    return "<u2" if vocab_size < _UINT16_BELOW else "<i4"


class IndexedWriter:
    """Writes one pair of files in ``folder``, document after document."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """Begin ``folder``/bin; ``dtype`` is one of ``DTYPES``."""
        self._folder, self._dtype = folder, np.dtype(dtype)
        self._code = _CODES[dtype]
        self._data = (folder / "bin").open("xb")
        self._sizes, self._marks = array("i"), array("q", [0])
        self._open = 0
        self.tokens = 0
        #: Documents that were left out because they had no token.
        self.empty = 0

    @property
    def documents(self) -> int:
        """Documents that were ended."""
        return len(self._marks) - 1

    def add(self, ids: npt.NDArray[np.int64]) -> None:
        """Append tokens to the document; they are known to fit the dtype."""
        self._data.write(ids.astype(self._dtype).tobytes())
        self._open += len(ids)
        self.tokens += len(ids)

    def end_document(self, eos: int | None = None) -> None:
        """End the document with the token ``eos``, if given; leave it out if it is empty.

        A document of more tokens than a sequence holds is several sequences.
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
        """Write ``folder``/idx, and both files to the disk."""
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
        """Close what is open."""
        self._data.close()


@contextmanager
def writing(prefix: Path, dtype: str, *, force: bool) -> Iterator[IndexedWriter]:
    """Give a writer; move its files to ``<prefix>.bin`` and ``.idx`` when the body has ended.

    Raises:
        UsageError: a file of that name is there and ``force`` is not given, or the folder cannot
            be written.
        RunFailedError: a write failed; nothing is left behind.
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
    """Put both files into place; at no time is an .idx beside tokens that are not its own."""
    with_suffix(prefix, ".idx").unlink(missing_ok=True)
    os.replace(folder / "bin", with_suffix(prefix, ".bin"))
    os.replace(folder / "idx", with_suffix(prefix, ".idx"))
