"""Two sides of a comparison, measured in turns: ratios and their spread."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Pair(Generic[T]):
    """One round: what each side measured."""

    a: T
    b: T


def alternate(rounds: int, a: Callable[[], T], b: Callable[[], T]) -> list[Pair[T]]:
    """Measure both sides ``rounds`` times, taking turns in going first."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            second = b()
            pairs.append(Pair(a(), second))
        else:
            first = a()
            pairs.append(Pair(first, b()))
    return pairs


def report(name_a: str, name_b: str, pairs: Sequence[Pair[float]]) -> None:
    """Print both sides and the ratio a / b: median, smallest and largest of the rounds."""
    ratios = sorted(pair.a / pair.b for pair in pairs)
    for name, values in ((name_a, [p.a for p in pairs]), (name_b, [p.b for p in pairs])):
        print(f"{name:<28} {statistics.median(values):10.3f}   {[round(v, 3) for v in values]}")
    middle = statistics.median(ratios)
    print(f"ratio {name_a} / {name_b}: {middle:.4f}  ({ratios[0]:.4f} to {ratios[-1]:.4f})")
