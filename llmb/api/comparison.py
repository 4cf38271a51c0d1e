"""Two runs beside each other, as ``llmb.compare`` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from llmb.api.frames import data_frame
from llmb.api.result import RunResult, load
from llmb.comparison.comparability import ConditionDifference, Weight
from llmb.comparison.compare import Comparison, compare_runs
from llmb.comparison.figures import Interval, Run, run_of
from llmb.comparison.ratio import Outcome, Ratio
from llmb.comparison.requirements import check_names, decide, parse
from llmb.errors import RequirementError
from llmb.records.printable import printable

if TYPE_CHECKING:
    from pandas import DataFrame

    from llmb.api.options import PathText

_RATE = "tokens_per_second"


@dataclass(frozen=True, repr=False)
class RunComparison:
    """A run beside a base run. Every ratio is the run over the base."""

    base: RunResult
    other: RunResult
    #: The comparison as ``llmb compare`` makes it, with the rank test.
    details: Comparison

    @property
    def ratio(self) -> float | None:
        """Tokens/s of ``other`` over tokens/s of ``base``; None if not compared.

        Example: 1.1 for 110 and 100 tokens/s.
        """
        found = self.details.ratio(_RATE)
        return None if found is None else found.ratio

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of ``ratio``; None if a run has too few values (``repeats=5``)."""
        found = self.details.ratio(_RATE)
        return None if found is None else found.interval

    @property
    def outcome(self) -> Outcome:
        """Whether ``other`` has better tokens/s, judged by the interval.

        "better", "worse", "no difference shown" (the interval holds 1), or "no interval".
        """
        found = self.details.ratio(_RATE)
        return "no interval" if found is None else found.outcome

    @property
    def comparable(self) -> bool:
        """Whether the ratio tells which system is faster; ``reasons`` says why not."""
        return not self.reasons

    @property
    def reasons(self) -> tuple[str, ...]:
        """The differences that forbid a comparison, gravest first; empty if comparable.

        Different work, such as another workload, has no ratio. Example of a difference with a
        ratio: ``rules_version: 1 against 3``.
        """
        found = self.details.differences
        return tuple(printable(str(one)) for one in found if one.weight is not Weight.NOTED)

    @property
    def differences(self) -> tuple[ConditionDifference, ...]:
        """All differences in work, standing and settings, gravest first."""
        return self.details.differences

    @property
    def ratios(self) -> Mapping[str, Ratio]:
        """The ratio of each figure by name, such as ``step_time_s``; empty if not compared."""
        return MappingProxyType({ratio.name: ratio for ratio in self.details.ratios})

    @property
    def conclusion(self) -> tuple[str, ...]:
        """The result in sentences; empty if not compared."""
        return self.details.conclusion

    def require(self, *conditions: str) -> None:
        """Do nothing if ``other`` meets all ``conditions``; the worse end of an interval decides.

        Args:
            conditions: as in ``llmb compare --require``. Example:
                ``"tokens_per_second>=0.95*base", "verdict==CONSISTENT"``.

        Raises:
            RequirementError: a condition is not met, or is not decided because the runs are not
                compared; the text has the figures.
            UsageError: a condition cannot be read.
        """
        required, other = [parse(text) for text in conditions], self.details.other
        check_names(required, (self.details.base, other))
        decided = [decide(one, other, self.details) for one in required]
        missed = [f"{one.requirement.text} ({one.why})" for one in decided if not one.met]
        if missed:
            many = f"{len(missed)} of {len(decided)} conditions not met"
            raise RequirementError(printable(f"{many}: {'; '.join(missed)}"))

    @cached_property
    def html(self) -> str:
        """The page of ``llmb compare --html``, without a script, and loading nothing."""
        from llmb.report.compare_page import compare_page

        names, runs = [str(self.base.path), str(self.other.path)], self._runs
        return compare_page(names, runs, [self.details], [()])

    def to_pandas(self) -> DataFrame:
        """Return a table with one row per run, the base first; columns as in ``llmb export``.

        Raises:
            UnavailableError: pandas is not installed.
        """
        from llmb.report.exports.rows import filled, run_row

        rows = filled([run_row(run) for run in self._runs])
        paths = [str(self.base.path), str(self.other.path)]
        return data_frame(
            [{"path": path, **row} for path, row in zip(paths, rows, strict=True)]
        ).set_index("path")

    def __repr__(self) -> str:
        if self.ratio is None:
            return f"<llmb comparison: not compared: {'; '.join(self.reasons)}>"
        parts = [f"{self.ratio:.4f} times the base's tokens/s"]
        if self.interval is not None:
            parts.append(f"95 % interval {self.interval[0]:.4f} to {self.interval[1]:.4f}")
        parts.append(self.outcome)
        if not self.comparable:
            parts.append(f"not comparable: {'; '.join(self.reasons)}")
        return f"<llmb comparison: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """Return the comparison as notebooks show it: tokens/s, ratios, and the conclusion."""
        from llmb.report.card import comparison_card

        return comparison_card(self.details)

    @property
    def _runs(self) -> list[Run]:
        return [self.details.base, self.details.other]


def compare(base: RunResult | PathText, other: RunResult | PathText) -> RunComparison:
    """Return ``other`` beside ``base``.

    Args:
        base: a result, or a path as for ``llmb.load``.
        other: the same.

    Raises:
        UsageError: nothing is readable at a path.
        BundleRefusedError: a record is damaged, or its tokens/s differ from its stamps.

    Example:
        >>> found = llmb.compare("baseline.zip", result)  # doctest: +SKIP
        >>> found.ratio, found.interval  # doctest: +SKIP
        (0.97, (0.94, 1.0))
    """
    results = [one if isinstance(one, RunResult) else load(one) for one in (base, other)]
    runs = [run_of(result.record) for result in results]
    return RunComparison(results[0], results[1], compare_runs(runs[0], runs[1]))
