"""Text into indexed tokens: what ``llmb data pack`` does."""

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
    """What is to be packed, and how."""

    inputs: tuple[Path, ...]
    #: With or without .bin or .idx.
    output: Path
    tokenizer: str = BYTES
    #: None: the tokenizer's, and as much more as ``eos`` needs.
    vocab_size: int | None = None
    #: Every line is a document, without what ends it; else every file is one.
    lines: bool = False
    #: Appended to every document.
    eos: int | None = None
    #: Whether files that are there already are replaced.
    force: bool = False

    @property
    def prefix(self) -> Path:
        """The path without .bin and .idx."""
        return without_suffix(self.output)


@dataclass(frozen=True)
class Packed:
    """What was written."""

    prefix: Path
    tokens: int
    documents: int
    #: Documents without a token, which were left out.
    empty: int
    vocab_size: int
    dtype: str


def pack(order: Order, progress: Callable[[int], None] = lambda done: None) -> Packed:
    """Tokenise the inputs in their order and write ``<prefix>.bin`` and ``<prefix>.idx``.

    The tokens are uint16 for a vocabulary of less than 65,500 and int32 for others, as Megatron
    chooses. ``progress`` is told now and then how many bytes of all inputs are done.

    Raises:
        UsageError: an input that cannot be read or is not text, a token outside the vocabulary,
            files in the way, nothing to write.
        UnavailableError: a tokenizer.json without the library that reads it.
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
    """Write the documents of one input; yield now and then how many bytes are done."""
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
    """Refuse what would fail later: inputs that cannot be read, or that would be overwritten."""
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
