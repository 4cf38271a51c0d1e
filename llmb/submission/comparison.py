"""Comparison of stored values with values recomputed from raw values, and the mismatches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_RELATIVE = 1e-9


@dataclass(frozen=True)
class Mismatch:
    """A field of the record that contradicts the record's raw values."""

    field: str
    stored: object
    recomputed: object

    def __str__(self) -> str:
        """Return one line for people; both values are quoted, because either may be untrusted.

        Example: ``result.tokens_per_second is 12.5, recomputed 11.0``.
        """
        return f"{self.field} is {_short(self.stored)}, recomputed {_short(self.recomputed)}"


@dataclass
class RecordComparison:
    """Collects mismatches: numbers may differ by 1e-9 of their size, other values not at all."""

    mismatches: list[Mismatch] = field(default_factory=list)

    def expect(self, field: str, stored: object, recomputed: object) -> None:
        """Note ``field`` unless both values are equal."""
        if not equal(stored, recomputed):
            self.mismatches.append(Mismatch(field, stored, recomputed))

    def require(self, field: str, stored: object, condition: bool, must: str) -> bool:
        """Note ``field`` unless ``condition`` holds; ``must`` is the expected value in words."""
        if not condition:
            self.mismatches.append(Mismatch(field, stored, must))
        return condition


def equal(a: object, b: object) -> bool:
    """Return whether two values are equal, floats to 1e-9 of the larger, bools only as bools."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=0.0)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
