"""The page of ``llmb compare --html``: two to eight runs beside a base run, in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmb.comparison.comparability import ConditionDifference, Weight
from llmb.comparison.compare import Comparison
from llmb.comparison.figures import Run
from llmb.comparison.requirements import Decision
from llmb.report import compare_figures
from llmb.report.drawing import Drawing
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import gigabytes, interval_words
from llmb.report.run_page import STYLES, drawn, headline, title_of
from llmb.report.templates import page_of


@dataclass(frozen=True)
class ComparedShown:
    """One run on the page, with its comparison with the base; None for the base."""

    name: str
    run: Run
    title: str
    hardware: str
    headline: str
    interval: str | None
    rate: Drawing
    times: Drawing | None
    comparison: Comparison | None
    ratios: dict[str, Drawing]
    decisions: tuple[Decision, ...]

    @property
    def apart(self) -> tuple[ConditionDifference, ...]:
        """Differences that refuse a comparison, or make it no comparison of systems."""
        found = self.comparison.differences if self.comparison else ()
        return tuple(one for one in found if one.weight is not Weight.NOTED)

    @property
    def noted(self) -> tuple[ConditionDifference, ...]:
        """Differences that the rules allow, such as another batch size."""
        found = self.comparison.differences if self.comparison else ()
        return tuple(one for one in found if one.weight is Weight.NOTED)


def compare_page(
    names: Sequence[str],
    runs: Sequence[Run],
    comparisons: Sequence[Comparison],
    decided: Sequence[Sequence[Decision]],
) -> str:
    """Return the page of ``runs``, the first of which is the base.

    Args:
        names: the runs as named on the command line.
        runs: two to eight runs.
        comparisons: each run but the first, beside the first.
        decided: the conditions of each run but the first.
    """
    rates = compare_figures.rates(runs)
    times = drawn(lambda: compare_figures.step_times(runs)) or ()
    shown = [
        ComparedShown(
            name=name,
            run=run,
            title=title_of(run.record),
            hardware=run.record.hardware,
            headline=headline(run.record),
            interval=interval_words(run.figures["tokens_per_second"].interval),
            rate=rates[n],
            times=times[n] if times else None,
            comparison=comparisons[n - 1] if n else None,
            ratios=compare_figures.ratios(comparisons[n - 1]) if n else {},
            decisions=tuple(decided[n - 1]) if n else (),
        )
        for n, (name, run) in enumerate(zip(names, runs, strict=True))
    ]
    return page_of(
        "compare.html.jinja",
        STYLES,
        shown=shown,
        rate_axis=compare_figures.rate_axis(runs),
        time_axis=times[-1] if times else None,
        number=number,
        gigabytes=gigabytes,
        not_measured=NOT_MEASURED,
    )
