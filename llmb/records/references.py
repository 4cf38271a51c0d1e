"""Every published reference: the version of llmb, and a comparison of two references.

The table is ``references.json``. A row has a version, the digest of the whole reference, and a
digest per model family; ``python tests/versions.py`` writes the row of this version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

TABLE = Path(__file__).with_name("references.json")


@dataclass(frozen=True)
class Reference:
    """The reference of one version of llmb."""

    version: str
    #: sha256 over all files of ``llmb/reference`` (``pins.reference_digest``).
    digest: str
    #: Family -> sha256 over the code of the family's workloads, without comments.
    families: Mapping[str, str]


@dataclass(frozen=True)
class Confirmed:
    """A person's statement, tested with numbers, that two codes of a family compute the same."""

    family: str
    #: Digests of the family's code, as in ``Reference.families``.
    older: str
    newer: str
    reason: str


@dataclass(frozen=True)
class ReferenceTable:
    """Rows from the oldest to the newest, and the changes of code that change no number."""

    references: tuple[Reference, ...]
    confirmed: tuple[Confirmed, ...] = ()

    def find(self, digest: str) -> Reference | None:
        """Return the newest row with ``digest``; None for an unpublished digest."""
        return next((row for row in reversed(self.references) if row.digest == digest), None)

    def has(self, version: str, digest: str) -> bool:
        """Tell whether ``version`` was published with ``digest``."""
        return any((row.version, row.digest) == (version, digest) for row in self.references)

    def reasons(self, family: str, digest: str, other: str) -> tuple[str, ...] | None:
        """Return why two references compute the same for ``family``.

        Args:
            family: such as "llama".
            digest: of the first whole reference.
            other: of the second whole reference.

        Returns:
            An empty tuple if the family's code is the same; the reasons of each confirmed change
            between both references, in the order of the table; None if the results differ, or if a
            reference is unknown.
        """
        if digest == other:
            return ()
        rows = [self.find(each) for each in (digest, other)]
        codes = [row.families.get(family) if row else None for row in rows]
        if codes[0] is None or codes[1] is None:
            return None
        lines = [line for line in self.confirmed if line.family == family]
        path = _path(codes[0], codes[1], lines)
        return None if path is None else tuple(line.reason for line in lines if line in path)


def _path(start: str, end: str, lines: Iterable[Confirmed]) -> list[Confirmed] | None:
    """Return the lines that lead from ``start`` to ``end``, None without a path."""
    ways: dict[str, list[Confirmed]] = {start: []}
    todo = [start]
    while todo:
        code = todo.pop(0)
        for line in lines:
            if code in (line.older, line.newer):
                onward = line.newer if code == line.older else line.older
                if onward not in ways:
                    ways[onward] = [*ways[code], line]
                    todo.append(onward)
    return ways.get(end)


def parse(text: str) -> ReferenceTable:
    """Return the table in ``text``.

    Raises:
        KeyError, TypeError: a row lacks a field, or has a field too many.
    """
    data: dict[str, Any] = json.loads(text)
    return ReferenceTable(
        tuple(Reference(**row) for row in data["references"]),
        tuple(Confirmed(**line) for line in data["confirmed"]),
    )


@cache
def table() -> ReferenceTable:
    """Return the table of this llmb."""
    return parse(TABLE.read_text(encoding="utf-8"))


def is_up_to(version: str, last: str) -> bool:
    """Tell whether ``version`` of llmb is ``last`` or older; False for text that is no version.

    Example: 0.1.0 is up to 0.1.0, 0.2.0 is not.
    """
    try:
        return Version(version) <= Version(last)
    except InvalidVersion:
        return False
