"""Series of a history: runs of equal work, in the order of time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from llmb.history.line import HistoryLine
from llmb.records.finding import Verdict

#: The figure by which runs of a series are compared.
Measure = Literal["tokens/s", "share of ceiling"]


@dataclass(frozen=True)
class LineFilter:
    """Conditions on lines; None: no condition."""

    workload: str | None = None
    precision: str | None = None
    plugin: str | None = None
    branch: str | None = None
    machine: str | None = None
    #: The newest lines of each series.
    last: int | None = None

    def keeps(self, line: HistoryLine) -> bool:
        """Tell whether ``line`` meets every condition but ``last``.

        A machine is named by a part of its device's or processor's name, in any case.
        """
        pairs = (
            (self.workload, line.workload),
            (self.precision, line.precision),
            (self.plugin, line.plugin),
            (self.branch, line.branch),
        )
        names = f"{line.device} {line.cpu or ''}".lower()
        named = self.machine is None or self.machine.lower() in names
        return named and all(wanted in (None, value) for wanted, value in pairs)


@dataclass(frozen=True)
class Series:
    """Runs of equal work (``HistoryLine.work``), the oldest first."""

    lines: tuple[HistoryLine, ...]

    @property
    def title(self) -> str:
        """The work in words, and the first six digits of its digest: other sizes have equal words.

        Example: ``llama-1.4b train, BF16, cpu, batch 1, eager (work 1f2e3d)``.
        """
        one = self.lines[-1]
        label = ", debug" if one.class_ == "debug" else ""
        work = f"{one.workload} {one.mode}{label}, {one.precision}, {one.plugin}, {one.settings}"
        return f"{work} (work {one.work[:6]})"

    @property
    def machines(self) -> int:
        """Number of different machines."""
        return len({line.machine for line in self.lines})

    @property
    def measure(self) -> Measure:
        """The share of the ceiling if the runs are of several machines, else tokens/s.

        Tokens/s of two machines differ without any change of the code.
        """
        known = all(line.fraction_of_ceiling is not None for line in self.lines)
        return "share of ceiling" if self.machines > 1 and known else "tokens/s"

    def values(self) -> tuple[float, ...]:
        """Return the value of each run by ``measure``."""
        return tuple(value_of(line, self.measure) for line in self.lines)

    def interval(self, line: HistoryLine) -> tuple[float, float] | None:
        """Return the 95 % interval of the value of ``line``: relative, as that of tokens/s."""
        if line.ci95 is None or line.interval_values < 3:
            return None
        times = value_of(line, self.measure) / line.tokens_per_second
        return line.ci95[0] * times, line.ci95[1] * times


def value_of(line: HistoryLine, measure: Measure) -> float:
    """Return tokens/s, or the share of the ceiling, of ``line``; NaN if unknown."""
    if measure == "tokens/s":
        return line.tokens_per_second
    return math.nan if line.fraction_of_ceiling is None else line.fraction_of_ceiling


def series_of(lines: Iterable[HistoryLine], wanted: LineFilter = LineFilter()) -> list[Series]:
    """Return the series of ``lines`` that ``wanted`` keeps, the series with the newest run first.

    INVALID runs have no figure and are left out, and so is a run that is in ``lines`` twice.
    """
    groups: dict[str, dict[str, HistoryLine]] = {}
    for line in lines:
        if wanted.keeps(line) and line.verdict is not Verdict.INVALID:
            groups.setdefault(line.work, {})[line.run_id] = line
    ordered = [_ordered(group.values(), wanted.last) for group in groups.values()]
    ordered.sort(key=lambda one: one[-1].created_utc, reverse=True)
    return [Series(tuple(one)) for one in ordered]


def _ordered(lines: Iterable[HistoryLine], last: int | None) -> Sequence[HistoryLine]:
    found = sorted(lines, key=lambda line: line.created_utc)
    return found if last is None else found[-last:]
