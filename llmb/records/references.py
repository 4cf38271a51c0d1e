"""Every published reference: which version of llmb had it, and whether two compute the same.

The table is ``references.json``. A row ties a version and the digest of its whole reference to one
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
    #: Family -> sha256 over the code that this family's workloads run, without comments.
    families: Mapping[str, str]


@dataclass(frozen=True)
class Confirmed:
    """A person's word that two codes of one family compute the same, held by a test of numbers."""

    family: str
    #: Digests of the family's code, as in ``Reference.families``.
    older: str
    newer: str
    reason: str


@dataclass(frozen=True)
class ReferenceTable:
    """Rows from the oldest to the newest, and the changes that change no number."""

    references: tuple[Reference, ...]
    confirmed: tuple[Confirmed, ...] = ()

    def find(self, digest: str) -> Reference | None:
        """Return the newest row with ``digest``; None where nobody published it."""
        return next((row for row in reversed(self.references) if row.digest == digest), None)

    def has(self, version: str, digest: str) -> bool:
        """Tell whether ``version`` was published with ``digest``."""
        return any((row.version, row.digest) == (version, digest) for row in self.references)

    def reasons(self, family: str, digest: str, other: str) -> tuple[str, ...] | None:
        """Return why two references compute the same for ``family``.

        Args:
            family: such as "llama".
            digest: of the one whole reference.
            other: of the other.

        Returns:
            Nothing where the family's code is the same; the reasons of each confirmed change
            between the two, in the order of the table; None where they compute otherwise, or where
            nothing is known of one of them.
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
    """Return the lines that lead from one code to the other, None where none do."""
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
        KeyError, TypeError: a row lacks a field, or has one too many.
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
    """Tell whether ``version`` of llmb is ``last`` or an older one; False where it is none at all.

    Example: 0.1.0 is up to 0.1.0, 0.2.0 is not.
    """
    try:
        return Version(version) <= Version(last)
    except InvalidVersion:
        return False
