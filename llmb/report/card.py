"""Small pieces of HTML for notebooks: a run, a comparison, a verified bundle, a run's progress.

A piece has no script and loads nothing. Styles act inside of the piece alone, and take colours from
the notebook's theme.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmb.comparison.comparability import Weight
from llmb.comparison.compare import Comparison
from llmb.measure.statistics import LEAST_SHOWN, interval_values
from llmb.records.finding import Status
from llmb.records.run_record import RunRecord
from llmb.report import compare_figures, run_facts, run_figures
from llmb.report.render import NOT_MEASURED, number
from llmb.report.run_facts import interval_words
from llmb.report.run_page import MEANING, drawn, headline, title_of
from llmb.report.templates import page_of
from llmb.submission.verify import VerifyCheck

_STYLES = ("card.css",)
_MOST = 20


def run_card(record: RunRecord) -> str:
    """Return headline, verdict, figures, and the drawings of fence blocks and of steps."""
    return page_of(
        "run_card.html.jinja",
        _STYLES,
        record=record,
        title=title_of(record),
        hardware=record.hardware,
        headline=drawn(lambda: headline(record)) or NOT_MEASURED,
        interval=drawn(lambda: shown_interval(record)),
        verdict=record.audit.verdict.value,
        meaning=MEANING[record.audit.verdict],
        tiles=drawn(lambda: list(run_facts.tiles(record))) or [],
        broken=[f for f in record.audit.findings if f.status in (Status.FAIL, Status.FLAG)][:_MOST],
        rates=drawn(lambda: run_figures.block_rates(record)),
        trace=drawn(lambda: run_figures.step_trace(record.timing)),
        waivers=record.waivers[:_MOST],
    )


def shown_interval(record: RunRecord) -> str | None:
    """Return the 95 % interval in words; None if fewer than three values are behind the interval.

    Example: a debug run of 20 steps has two fence blocks, and an interval that holds any number.
    """
    enough = interval_values(record.timing.repeats) >= LEAST_SHOWN
    return interval_words(record.result.ci95) if enough else None


def comparison_card(comparison: Comparison) -> str:
    """Return tokens/s of both runs on one axis, the ratio of each figure, and the conclusion."""
    runs = [comparison.base, comparison.other]
    names = ("base", "other")
    rates = compare_figures.rates(runs)
    return page_of(
        "comparison_card.html.jinja",
        _STYLES,
        rows=[
            (name, title_of(run.record), run.record.hardware, headline(run.record), drawing)
            for name, run, drawing in zip(names, runs, rates, strict=True)
        ],
        axis=compare_figures.rate_axis(runs),
        ratios=comparison.ratios,
        drawings=compare_figures.ratios(comparison),
        conclusion=comparison.conclusion,
        apart=[one for one in comparison.differences if one.weight is not Weight.NOTED],
        number=number,
    )


def bundle_card(checks: Sequence[VerifyCheck], *, ok: bool) -> str:
    """Return every check of a bundle, the failed checks first."""
    ordered = sorted(checks, key=lambda check: check.ok)
    return page_of("bundle_card.html.jinja", _STYLES, checks=ordered, ok=ok)


def progress_card(phase: str, done: int, steps: int | None, notes: Sequence[str]) -> str:
    """Return a bar of ``done`` of ``steps`` steps; None: a phase without a known length.

    An empty ``phase``: no bar, only the notes.
    """
    return page_of(
        "progress_card.html.jinja", _STYLES, phase=phase, done=done, steps=steps, notes=notes
    )
