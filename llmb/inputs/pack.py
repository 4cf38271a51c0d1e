"""Converts text into indexed tokens: the work of ``llmb data pack``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmb.errors import UsageError
from llmb.inputs.files import size_of
from llmb.inputs.indexed import with_suffix, without_suffix
from llmb.inputs.indexed_writer import IndexedWriter, dtype_for, writing
from llmb.inputs.text import (
    BYTES,
    PIECE_BYTES,
    Tokenizer,
    encode_all,
    lines_of,
    open_tokenizer,
    pieces_of,
)

#: The format's largest dtype that llmb writes is int32.
_LARGEST_VOCABULARY = 2**31


@dataclass(frozen=True)
class Order:
    """The inputs, the output and the options of ``llmb data pack``."""

    inputs: tuple[Path, ...]
    #: The output path; a trailing .bin or .idx is ignored.
    output: Path
    tokenizer: str = BYTES
    #: None: the tokenizer's vocabulary, extended to ``eos`` if needed.
    vocab_size: int | None = None
    #: True: every line is a document, without the line break. False: every file is a document.
    lines: bool = False
    #: Id of the token appended to every document, such as 50256; None for no token.
    eos: int | None = None
    #: Whether existing files are replaced.
    force: bool = False

    @property
    def prefix(self) -> Path:
        """The path without .bin and .idx."""
        return without_suffix(self.output)


@dataclass(frozen=True)
class Packed:
    """Facts of the written files."""

    prefix: Path
    tokens: int
    documents: int
    #: Number of omitted documents: documents without tokens.
    empty: int
    vocab_size: int
    dtype: str


def pack(order: Order, progress: Callable[[int], None] = lambda done: None) -> Packed:
    """Tokenise the inputs in order and write ``<prefix>.bin`` and ``<prefix>.idx``.

    The tokens are uint16 for a vocabulary below 65,500 and int32 for larger vocabularies, as in
    Megatron. ``progress`` is called at times with the number of finished bytes of all inputs.

    Raises:
        UsageError: an input is unreadable or not text, a token is outside the vocabulary, an
            output file exists, or no token would be written.
        UnavailableError: a tokenizer.json is given, and the library `tokenizers` is missing.
        RunFailedError: a write failed.
    """
    _check_inputs(order)
    tokenizer = open_tokenizer(order.tokenizer)
    vocab_size = _vocab_size(order, tokenizer)
    dtype, done = dtype_for(vocab_size), 0
    with writing(order.prefix, dtype, force=order.force) as writer:
        for path in order.inputs:
            for end in _write(writer, order, path, tokenizer, vocab_size):
                progress(done + end)
            done += size_of(path)
            progress(done)
        if not writer.tokens:
            raise UsageError(f"nothing to write: no text in {_names(order.inputs)}")
    name = np.dtype(dtype).name
    documents, empty = writer.documents, writer.empty
    return Packed(order.prefix, writer.tokens, documents, empty, vocab_size, name)


def _write(
    writer: IndexedWriter, order: Order, path: Path, tokenizer: Tokenizer, vocab_size: int
) -> Iterator[int]:
    """Write the documents of an input; yield at times the number of finished bytes."""
    pieces = lines_of(path) if order.lines else pieces_of(path)
    told = 0
    for piece, ids in encode_all(path, pieces, tokenizer):
        if ids.size and ids.max() >= vocab_size:
            raise UsageError(
                f"{str(path)!r}: token {ids.max()} at byte {piece.offset:,} or after is outside "
                f"--vocab-size {vocab_size:,}"
            )
        writer.add(ids)
        if order.lines:
            writer.end_document(order.eos)
        if (end := piece.offset + len(piece.content)) >= told + PIECE_BYTES:
            told = end
            yield end
    if not order.lines:
        writer.end_document(order.eos)


def _vocab_size(order: Order, tokenizer: Tokenizer) -> int:
    eos = -1 if order.eos is None else order.eos
    size = max(tokenizer.vocab_size, eos + 1) if order.vocab_size is None else order.vocab_size
    if not 0 < size <= _LARGEST_VOCABULARY:
        raise UsageError(f"--vocab-size {size}: must be from 1 to {_LARGEST_VOCABULARY:,}")
    if order.eos is not None and not 0 <= eos < size:
        raise UsageError(f"--eos {eos}: not in the vocabulary of {size:,}")
    return size


def _check_inputs(order: Order) -> None:
    """Refuse unreadable inputs, and outputs that would overwrite an input."""
    if not str(order.output).isprintable():
        raise UsageError(f"--output {str(order.output)!r}: not readable text")
    if order.output.is_dir():
        raise UsageError(f"--output {order.output}: a folder; give a prefix such as folder/corpus")
    targets = [with_suffix(order.prefix, suffix) for suffix in (".bin", ".idx")]
    for path in order.inputs:
        size_of(path)
        if any(target.exists() and target.samefile(path) for target in targets):
            raise UsageError(f"--output {order.output}: would overwrite the input {str(path)!r}")


def _names(paths: tuple[Path, ...]) -> str:
    rest = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{str(paths[0])!r}{rest}"
