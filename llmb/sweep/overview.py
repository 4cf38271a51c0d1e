"""A sweep as a whole: the state of every point, the best runs, and formats without a valid run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ConfigDict, Field

from llmb.config import Frozen
from llmb.records.finding import Verdict
from llmb.sweep.directory import SweepDirectory
from llmb.sweep.plan import SweepPlan
from llmb.sweep.points import NO_MEMORY, PointState, best, tied, walk

# Version history, one line per change.
# llmb.sweep-overview/1  2026-11  first version.
SCHEMA: Literal["llmb.sweep-overview/1"] = "llmb.sweep-overview/1"


class Overview(Frozen):
    """The output of ``llmb sweep --json``."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

    schema_: Literal["llmb.sweep-overview/1"] = Field(alias="schema", default=SCHEMA)
    plan: SweepPlan
    points: tuple[PointState, ...]
    #: Precision -> path of the fastest run that is not INVALID, relative to the sweep's folder.
    best: dict[str, str]
    #: Precision -> runs that cannot be told apart from the fastest run: intervals overlap.
    tied: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Number of points still to be run."""
        return sum(state.status == "unfinished" for state in self.points)

    @property
    def failed(self) -> tuple[PointState, ...]:
        """The points that failed for another reason than memory."""
        return tuple(state for state in self.points if state.status == "failed")

    @property
    def invalid(self) -> tuple[PointState, ...]:
        """The points with a run that the audit judged INVALID."""
        found = (state for state in self.points if state.measured)
        return tuple(s for s in found if s.measured and s.measured.verdict is Verdict.INVALID)


def of(directory: SweepDirectory) -> Overview:
    """Return the overview of the sweep in ``directory``, read from the files on disk."""
    return summed(directory.plan, walk(directory.plan, directory.state))


def summed(plan: SweepPlan, states: tuple[PointState, ...]) -> Overview:
    """Return the overview of ``states``."""
    runs = {precision: state.run for precision, state in best(states).items()}
    alike = {
        precision: tuple(state.run for state in others if state.run)
        for precision, others in tied(states).items()
    }
    fastest = {precision: run for precision, run in runs.items() if run}
    return Overview(plan=plan, points=states, best=fastest, tied=alike)


def missing(overview: Overview) -> dict[str, str]:
    """Return precision -> reason for every precision without a run to submit.

    Example: ``{"FP16": "batch size 1 is out of memory"}``.
    """
    reasons = {each.name: each.reason for each in overview.plan.left_out}
    for precision in overview.plan.precisions:
        own = [state for state in overview.points if state.precision == precision]
        if precision not in overview.best and own:
            reasons[precision] = _why_none(own)
    # A run counts for the format observed in the computation, not for the declared format.
    handed_in = {
        s.measured.effective_precision for s in best(overview.points).values() if s.measured
    }
    return {name: reason for name, reason in reasons.items() if name not in handed_in}


def _why_none(states: Sequence[PointState]) -> str:
    first = states[0]
    if first.status in NO_MEMORY:
        size = first.batch_size
        return "no batch size fits" if size is None else f"batch size {size} is out of memory"
    return "its runs are INVALID" if any(s.measured for s in states) else "its runs failed"
