"""Sides of a comparison, measured in turns: ratios and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Generic[T]):
    """One round: what each side measured."""

    a: T
    b: T


@dataclass(frozen=True)
class Spread:
    """The median of some values, the smallest and the largest of them."""

    median: float
    low: float
    high: float

    def show(self, digits: int) -> str:
        """Return ``median (low to high)``."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and largest of ``values``, of which there is one at least."""
    return Spread(statistics.median(values), min(values), max(values))


def ratios(a: Sequence[float], b: Sequence[float]) -> Spread:
    """Return the spread of a / b, round by round: what both sides of a round met cancels."""
    return spread([x / y for x, y in zip(a, b, strict=True)])


def alternate(rounds: int, a: Callable[[], T], b: Callable[[], T]) -> list[Pair[T]]:
    """Measure both sides ``rounds`` times, taking turns in going first."""
    turns = take_turns(rounds, {"a": a, "b": b})
    return [Pair(x, y) for x, y in zip(turns["a"], turns["b"], strict=True)]


def take_turns(rounds: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Measure every side once in each of ``rounds`` rounds; each round another side goes first."""
    names = list(sides)
    measured: dict[str, list[T]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            measured[name].append(sides[name]())
    return measured


def report(name_a: str, name_b: str, pairs: Sequence[Pair[float]]) -> None:
    """Print both sides and the ratio a / b: median, smallest and largest of the rounds."""
    sides = {name_a: [pair.a for pair in pairs], name_b: [pair.b for pair in pairs]}
    for name, values in sides.items():
        print(f"{name:<28} {statistics.median(values):10.3f}   {[round(v, 3) for v in values]}")
    print(f"ratio {name_a} / {name_b}: {ratios(sides[name_a], sides[name_b]).show(4)}")
