"""Weighted lists of indexed files: each line is ``weight prefix corpus`` for a pair of files.

The format is that of Megatron-DeepSpeed's ``--data-file-list``. Blank lines and lines that begin
with "#" are skipped. A prefix may end with .bin. A relative prefix starts at the folder of the
list. Example of a line: ``0.7 shards/books_00 books``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmb.errors import UsageError
from llmb.inputs.files import readable, size_of
from llmb.inputs.indexed import without_suffix

#: Bytes of a line that is too long for a list: 64 KiB.
_LONGEST = 2**16


@dataclass(frozen=True)
class ListedFile:
    """A line of a list: the weight, the prefix and the corpus of a pair of files."""

    line: int
    #: Share of the sequences drawn from the pair: the weights of a list add up to 1.
    weight: float
    prefix: Path
    corpus: str


def looks_like_list(path: Path) -> bool:
    """Tell whether the first line, after blanks and comments, is ``number word word``.

    Only the first line counts: a list with a fault in a later line is refused as a list instead
    of accepted as text.
    """
    try:
        _, fields = next(_lines(path))
        float(fields[0])
    except (StopIteration, ValueError, UsageError):
        return False
    return len(fields) == 3


def read_list(path: Path) -> tuple[ListedFile, ...]:
    """Return the entries of the list at ``path``, in the order of the list.

    Raises:
        UsageError: the list is unreadable or empty, a line has a wrong form, or a weight is not a
            positive number. For a wrong line the message has the line number.
    """
    entries = []
    for number, fields in _lines(path):
        where = f"{str(path)!r}, line {number}"
        if len(fields) != 3:
            raise UsageError(
                f"{where}: {len(fields)} words instead of `weight prefix corpus`; "
                f"write text:{path} if the file is text"
            )
        try:
            weight = float(fields[0])
        except ValueError:
            weight = math.nan
        if not 0 < weight < math.inf:
            raise UsageError(f"{where}: the weight {fields[0]!r} is no positive number")
        prefix = without_suffix(path.parent / fields[1])
        entries.append(ListedFile(number, weight, prefix, fields[2]))
    return _normalised(path, entries)


def _normalised(path: Path, entries: list[ListedFile]) -> tuple[ListedFile, ...]:
    if not entries:
        raise UsageError(f"{str(path)!r} lists no files: write `weight prefix corpus` lines")
    try:
        # Rounded once: the built-in sum rounds differently in different versions of Python.
        total = math.fsum(entry.weight for entry in entries)
    except OverflowError:
        raise UsageError(f"{str(path)!r}: the weights add up to more than a number holds") from None
    return tuple(ListedFile(e.line, e.weight / total, e.prefix, e.corpus) for e in entries)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of every line except blank lines and comments."""
    size_of(path)
    with readable(path), path.open("rb") as stream:
        number = 0
        while raw := stream.readline(_LONGEST):
            number += 1
            where = f"{str(path)!r}, line {number}"
            if len(raw) == _LONGEST:
                raise UsageError(f"{where}: longer than a list of files has them")
            try:
                fields = raw.decode().split()
            except UnicodeDecodeError:
                raise UsageError(f"{where}: not UTF-8 text") from None
            if fields and not fields[0].startswith("#"):
                yield number, fields
