"""Converts plain text to tokens: the bytes, or the ids from the user's ``tokenizer.json``.

Example: with the byte tokenizer the text "Hi" has the ids 72 and 105.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from llmb.errors import UnavailableError, UsageError
from llmb.inputs.files import mapped, readable, size_of
from llmb.inputs.indexed_writer import dtype_for

#: Name of the byte tokenizer: every byte of the text is a token.
BYTES = "bytes"
#: Bytes of a piece of text, extended to the end of the line. Each piece is tokenised separately.
PIECE_BYTES = 2**18
#: Bytes of a batch of pieces, tokenised in parallel. Tokenising takes 100 times this memory.
_BATCH_BYTES = 16 * PIECE_BYTES
_MOST_PIECES = 4096

Ids = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """A part of a text; no UTF-8 character is cut."""

    #: Offset of the piece in the file, in bytes.
    offset: int
    content: bytes


class Tokenizer(Protocol):
    """Interface of tokenizers: text to token ids."""

    @property
    def vocab_size(self) -> int:
        """The largest possible id plus 1."""

    def encode(self, path: Path, pieces: Sequence[Piece]) -> list[Ids]:
        """Return the ids of each piece of the text at ``path``."""


class Bytes:
    """The byte tokenizer: the id of a token is the value of the byte."""

    vocab_size = 256

    def encode(self, path: Path, pieces: Sequence[Piece]) -> list[Ids]:
        """Return the values of the bytes."""
        return [np.frombuffer(piece.content, np.uint8).astype(np.int64) for piece in pieces]


class Json:
    """A tokenizer of the library `tokenizers`, loaded from a tokenizer.json.

    Special tokens, truncation and padding are off, even if the file enables them.
    """

    def __init__(self, path: Path) -> None:
        """Load ``path``.

        Raises:
            UnavailableError: the library is not installed.
            UsageError: no file, or a file without a tokenizer.
        """
        try:
            library = import_module("tokenizers")
        except ImportError:
            raise UnavailableError(
                "the library `tokenizers` that reads a tokenizer.json is not installed: "
                "pip install 'llmb[data]', or use the byte tokenizer"
            ) from None
        size_of(path)
        with _told(f"{str(path)!r} is no tokenizer.json that `tokenizers` reads"):
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            # Ids may have gaps: the number of tokens would be too small.
            self.vocab_size = 1 + max(self._tokenizer.get_vocab().values(), default=-1)

    def encode(self, path: Path, pieces: Sequence[Piece]) -> list[Ids]:
        """Return the ids of each piece; raise UsageError for a piece that is not UTF-8."""
        texts = [_decoded(path, piece) for piece in pieces]
        with _told(f"{str(path)!r} cannot be tokenised"):
            found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, np.int64) for one in found]


def open_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer ``name``: "bytes", or the path of a tokenizer.json."""
    return Bytes() if name == BYTES else Json(Path(name))


def read_text(path: Path, tokenizer: Tokenizer) -> npt.NDArray[Any]:
    """Return the tokens of the text at ``path``, shape ``[tokens]``.

    Tokens of the byte tokenizer are memory-mapped; ids from a tokenizer.json are in memory. Text is
    tokenised in pieces of 256 KiB, extended to the end of the line. No token spans two pieces. The
    ids are the same on every machine with the same version of the library.
    """
    if isinstance(tokenizer, Bytes):
        return mapped(path, "<u1", size_of(path))
    dtype = dtype_for(tokenizer.vocab_size)
    parts = [ids.astype(dtype) for _, ids in encode_all(path, pieces_of(path), tokenizer)]
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def encode_all(
    path: Path, pieces: Iterator[Piece], tokenizer: Tokenizer
) -> Iterator[tuple[Piece, Ids]]:
    """Yield every piece with the ids of the piece, tokenised batch by batch."""
    while batch := list(_until(pieces, _BATCH_BYTES)):
        yield from zip(batch, tokenizer.encode(path, batch), strict=True)


def pieces_of(path: Path) -> Iterator[Piece]:
    """Yield the text in pieces of 256 KiB and more, cut at the end of a line if possible."""
    yield from _pieces(path, lambda stream: stream.read(PIECE_BYTES) + _rest(stream))


def lines_of(path: Path) -> Iterator[Piece]:
    """Yield the lines of the text without line breaks, including empty lines."""
    for piece in _pieces(path, lambda stream: stream.readline()):
        content = piece.content.removesuffix(b"\n")
        yield Piece(piece.offset, content.removesuffix(b"\r"))


def _pieces(path: Path, take: Callable[[IO[bytes]], bytes]) -> Iterator[Piece]:
    size_of(path)
    offset = 0
    with readable(path), path.open("rb") as stream:
        while content := take(stream):
            yield Piece(offset, content)
            offset += len(content)


def _rest(stream: IO[bytes]) -> bytes:
    """Return the rest of the line; of a very long line, up to 256 KiB and a full character."""
    rest = stream.readline(PIECE_BYTES)
    if rest.endswith(b"\n"):
        return rest
    for _ in range(3):  # UTF-8 has up to three continuation bytes 0b10......
        following = stream.read(1)
        if following and following[0] & 0xC0 == 0x80:
            rest += following
        else:
            stream.seek(-len(following), 1)
            break
    return rest


def _until(pieces: Iterator[Piece], most: int) -> Iterator[Piece]:
    """Yield pieces until ``most`` bytes or 4,096 pieces are reached."""
    held = 0
    for piece in islice(pieces, _MOST_PIECES):
        yield piece
        held += len(piece.content)
        if held >= most:
            return


def _decoded(path: Path, piece: Piece) -> str:
    try:
        return piece.content.decode()
    except UnicodeDecodeError as error:
        at = piece.offset + error.start
        raise UsageError(
            f"{str(path)!r} is not UTF-8 text at byte {at:,}: convert it, or use --tokenizer bytes"
        ) from None


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn an error of the library `tokenizers` into a UsageError.

    The library raises bare exceptions.
    """
    try:
        yield
    except BaseException as error:
        # A panic of Rust does not derive from Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise UsageError(f"{what}: {' '.join(str(error).split())}") from None
        raise
