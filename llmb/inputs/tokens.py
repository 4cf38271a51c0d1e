"""Sequences of real tokens: each a function of a seed and the files, and of nothing else."""

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

#: Files that are mapped at once: a list may name more of them than a process may open.
_MAPPED = 64
#: ``derive`` returns 63 bits; a float holds 53.
_SEED_BITS, _FLOAT_BITS = 63, 53


class TokenSource:
    """Draws sequences of tokens.

    Row ``r`` of a step with seed ``s`` begins in the first file whose weight, added to those of
    the files before it, exceeds ``derive(s, "file", r) / 2**63`` (as a float of 53 bits), at
    token ``derive(s, "start", r) * (tokens - T + 1) // 2**63`` of that file. Places differ in
    probability by less than ``tokens / 2**63``. The tokens of a file are its documents in their
    order; a sequence may begin within one document and end in another.

    Megatron does it differently: it shuffles documents, cuts them into sequences that touch, and
    shuffles those, for an epoch at a time, so that a token is seen once an epoch. Then a step
    depends on all that was drawn before. Here any step can be made again from its seed alone: by
    the verifier, and by a stranger. What is read, one contiguous row a sequence at a random place,
    costs the same.
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
            UsageError: a token is not in the vocabulary, or a file has too few for a sequence.
            RunFailedError: a file cannot be read any more.
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

    Every check of ``describe`` is made anew. With ``sequence_length`` a source that is too short
    for one sequence is refused here, and not at the first step.

    Raises:
        RunFailedError: the files are not those that were described.
        UsageError: too few tokens, or a text with tokens outside the vocabulary (indexed files
            are looked at as they are drawn from).
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
    """Raise UsageError where a part has fewer tokens than a sequence."""
    for part in parts:
        if part.tokens < sequence_length:
            raise UsageError(
                f"{str(part.path)!r} holds {part.tokens:,} tokens, fewer than the "
                f"{sequence_length:,} of a sequence: give more data, or a shorter --sequence-length"
            )


def check_vocabulary(part: Part, start: int, ids: npt.NDArray[Any], vocab_size: int) -> None:
    """Raise UsageError where one of ``ids``, from token ``start`` of the part on, is no token."""
    if ids.min() >= 0 and ids.max() < vocab_size:
        return
    at = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
    raise UsageError(
        f"{str(part.path)!r}: token {start + at:,} is {ids[at]}, outside the model's vocabulary of "
        f"{vocab_size:,}: give data made with its tokenizer, or a workload that has this vocabulary"
    )
