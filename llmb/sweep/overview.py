"""A sweep as a whole: the state of every point, the best runs, and formats without a valid run."""

from __future__ import annotations

from collections.abc import Sequence

from llmb.records.sweep_overview import Overview, PointState, SweepPlan
from llmb.sweep.directory import SweepDirectory
from llmb.sweep.points import NO_MEMORY, best, tied, walk


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
