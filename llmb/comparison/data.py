"""A comparison as JSON data, ``llmb compare --json``; null stands for an unknown value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

from pydantic import Field

from llmb.comparison.comparability import Weight
from llmb.comparison.compare import Comparison
from llmb.comparison.figures import Better, Interval, Run
from llmb.comparison.ratio import Outcome
from llmb.comparison.requirements import Decision
from llmb.config import Frozen, JsonFile
from llmb.records.finding import Verdict
from llmb.records.run_record import RunClass

# Version history, one line per change.
# llmb.compare/1  2026-11  first version with a name: the fields are as before.
SCHEMA: Literal["llmb.compare/1"] = "llmb.compare/1"


class FigureData(Frozen):
    """One figure of a run."""

    value: float
    unit: str
    ci95: Interval | None


class DecisionData(Frozen):
    """A condition (``--require``), and whether the run meets it."""

    requirement: str
    met: bool | None
    #: The figures behind the decision, in words.
    why: str


class RunData(Frozen):
    """Identity, verdict and figures of one run."""

    #: The run as named on the command line, such as ``runs/a``.
    path: str
    run_id: str
    class_: RunClass = Field(alias="class")
    verdict: Verdict
    effective_precision: str | None
    figures: dict[str, FigureData]


class DifferenceData(Frozen):
    """A difference between two runs, with the effect on the comparison."""

    item: str
    base: str
    other: str
    weight: Weight
    reason: str


class RatioData(Frozen):
    """A figure of both runs; ``ratio`` is other over base."""

    name: str
    unit: str
    base: float
    other: float
    ratio: float
    ci95: Interval | None
    #: Whether more or less is better, such as "less" for ``step_time_s``; null: neither.
    better: Better | None
    outcome: Outcome


class NotComparedData(Frozen):
    """A figure missing in one run, or with another meaning in one run."""

    name: str
    reason: str


class RankTestData(Frozen):
    """Mann-Whitney's test of both runs' seconds per token (``llmb.comparison.significance``)."""

    of: str
    values: tuple[int, int]
    independent_values: tuple[float, float]
    other_is_faster: float
    p_value: float
    p_value_as_independent: float


class ComparedRun(RunData):
    """Another run, compared with the base run."""

    refused: tuple[str, ...]
    differences: tuple[DifferenceData, ...]
    ratios: tuple[RatioData, ...]
    not_compared: tuple[NotComparedData, ...]
    rank_test: RankTestData | None
    #: The conclusion as sentences for people.
    conclusion: tuple[str, ...]
    requirements: tuple[DecisionData, ...]


class CompareReport(JsonFile):
    """The output of ``llmb compare --json``."""

    schema_: Literal["llmb.compare/1"] = Field(alias="schema", default=SCHEMA)
    base: RunData
    comparisons: tuple[ComparedRun, ...]
    #: Decisions on the base run, if no other run was given.
    requirements: tuple[DecisionData, ...]


def compare_report(
    names: Sequence[str],
    runs: Sequence[Run],
    found: Sequence[Comparison],
    decided: Sequence[Sequence[Decision]],
) -> CompareReport:
    """Return the report on the runs ``names``; the first run is the base."""
    return CompareReport(
        base=RunData(**_run(names[0], runs[0])),
        comparisons=tuple(
            ComparedRun(**_run(name, one.other), **_comparison(one), requirements=_met(decisions))
            for name, one, decisions in zip(names[1:], found, decided, strict=True)
        )
        if found
        else (),
        requirements=() if found else _met(decided[0]),
    )


def _met(decisions: Sequence[Decision]) -> tuple[DecisionData, ...]:
    return tuple(
        DecisionData(requirement=one.requirement.text, met=one.met, why=one.why)
        for one in decisions
    )


def _run(name: str, run: Run) -> dict[str, object]:
    record = run.record
    return {
        "path": name,
        "run_id": record.run_id,
        "class": record.class_,
        "verdict": record.audit.verdict,
        "effective_precision": record.precision.effective,
        "figures": {
            figure.name: FigureData(value=figure.value, unit=figure.unit, ci95=figure.interval)
            for figure in run.figures.values()
        },
    }


def _comparison(one: Comparison) -> dict[str, object]:
    steps = one.steps
    return {
        "refused": tuple(map(str, one.refusals)),
        "differences": tuple(DifferenceData(**asdict(each)) for each in one.differences),
        "ratios": tuple(
            RatioData(
                name=ratio.name,
                unit=ratio.unit,
                base=ratio.base,
                other=ratio.other,
                ratio=ratio.ratio,
                ci95=ratio.interval,
                better=ratio.better,
                outcome=ratio.outcome,
            )
            for ratio in one.ratios
        ),
        "not_compared": tuple(NotComparedData(**asdict(left)) for left in one.left_out),
        "rank_test": None if steps is None else RankTestData(**asdict(steps)),
        "conclusion": tuple(one.conclusion),
    }
