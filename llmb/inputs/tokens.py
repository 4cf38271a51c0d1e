"""Draws sequences of real tokens: a sequence depends on a seed and the files only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from llmb.config import DataSource
from llmb.errors import RunFailedError, UsageError
from llmb.inputs.contents import Contents, Part, find_contents
from llmb.records.seeds import derive

#: Most files mapped at once: a list may have more files than a process may open.
_MAPPED = 64
#: ``derive`` returns 63 bits; a float holds 53.
_SEED_BITS, _FLOAT_BITS = 63, 53


class TokenSource:
    """Draws sequences of tokens.

    Row ``r`` of a step with seed ``s`` is drawn in two parts. The file is the first file with a
    cumulative weight above ``derive(s, "file", r) / 2**63`` (as a float of 53 bits). The row
    begins at token ``derive(s, "start", r) * (tokens - T + 1) // 2**63`` of the file. Start
    positions differ in probability by less than ``tokens / 2**63``. The tokens of a file are the
    documents in file order. A sequence may begin in a document and end in a later document.
    Example: with weights 0.7 and 0.3, a draw of 0.8 selects the second file.

    Megatron draws differently: Megatron shuffles the documents of an epoch, cuts the documents
    into adjacent sequences, and shuffles the sequences. Each token is seen once an epoch, but a
    step then depends on all previous draws. In llmb any step can be remade from its seed only, by
    the reference run and by any third party. The cost of reading is the same: a contiguous row per
    sequence at a random position.
    """

    def __init__(self, contents: Contents, vocab_size: int) -> None:
        """Draw from ``contents`` for a model with ``vocab_size`` tokens."""
        self.data = contents.data
        self.vocab_size = vocab_size
        self._parts = contents.parts
        self._shares = list(accumulate(part.weight for part in contents.parts))
        self._read: Callable[[int], npt.NDArray[Any]] = lru_cache(_MAPPED)(self._read_part)

    def sequences(self, seed: int, batch_size: int, sequence_length: int) -> npt.NDArray[np.int64]:
        """Return the token ids ``[batch_size, sequence_length]`` of a step.

        Raises:
            UsageError: a token is outside the vocabulary, or a file is shorter than a sequence.
            RunFailedError: a file has become unreadable.
        """
        check_length(self._parts, sequence_length)
        ids = np.empty((batch_size, sequence_length), np.int64)
        for row in range(batch_size):
            share = (derive(seed, "file", row) >> _SEED_BITS - _FLOAT_BITS) / 2**_FLOAT_BITS
            index = min(bisect_right(self._shares, share), len(self._parts) - 1)
            places = self._parts[index].tokens - sequence_length + 1
            start = derive(seed, "start", row) * places >> _SEED_BITS
            ids[row] = self._read(index)[start : start + sequence_length]
            check_vocabulary(self._parts[index], start, ids[row], self.vocab_size)
        return ids

    def _read_part(self, index: int) -> npt.NDArray[Any]:
        try:
            return self._parts[index].read()
        except UsageError as error:
            raise RunFailedError(f"{error}: the data changed since they were opened") from None


def open_tokens(data: DataSource, vocab_size: int, sequence_length: int = 1) -> TokenSource:
    """Open ``data`` again and return a source of sequences for a model with ``vocab_size`` tokens.

    Every check of ``describe`` is repeated. A source shorter than ``sequence_length`` is refused
    already here, before the first step.

    Raises:
        RunFailedError: the files differ from the description in ``data``.
        UsageError: too few tokens, or a text with tokens outside the vocabulary (tokens of indexed
            files are checked at each draw).
    """
    try:
        contents = find_contents(f"{data.kind}:{data.path}", data.tokenizer)
    except UsageError as error:
        raise RunFailedError(f"the data cannot be read again: {error}") from None
    found = contents.data
    if found.sha256 != data.sha256:
        raise RunFailedError(
            f"{data.path!r} changed: digest {found.sha256[:12]}, not {data.sha256[:12]}; bring "
            "back the data that were described, or begin again with these"
        )
    if found.tokens != data.tokens:
        raise RunFailedError(
            f"{data.path!r} has {found.tokens:,} tokens, not {data.tokens:,}: another version of "
            "`tokenizers` cuts the same text otherwise; install the one it was described with"
        )
    check_length(contents.parts, sequence_length)
    if data.kind == "text":
        (part,) = contents.parts
        check_vocabulary(part, 0, part.read(), vocab_size)
    return TokenSource(contents, vocab_size)


def check_length(parts: tuple[Part, ...], sequence_length: int) -> None:
    """Raise UsageError if a part has fewer tokens than a sequence."""
    for part in parts:
        if part.tokens < sequence_length:
            raise UsageError(
                f"{str(part.path)!r} holds {part.tokens:,} tokens, fewer than the "
                f"{sequence_length:,} of a sequence: give more data, or a shorter --sequence-length"
            )


def check_vocabulary(part: Part, start: int, ids: npt.NDArray[Any], vocab_size: int) -> None:
    """Raise UsageError if an id in ``ids`` is outside the vocabulary.

    ``ids`` begin at token ``start`` of the part; the message has the position of the wrong token.
    """
    if ids.min() >= 0 and ids.max() < vocab_size:
        return
    at = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
    raise UsageError(
        f"{str(part.path)!r}: token {start + at:,} is {ids[at]}, outside the model's vocabulary of "
        f"{vocab_size:,}: give data made with its tokenizer, or a workload that has this vocabulary"
    )
