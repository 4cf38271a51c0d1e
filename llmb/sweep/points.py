"""The state of each point of a sweep, and the order in which points are visited."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llmb.measure.statistics import interval_values
from llmb.records.finding import Verdict
from llmb.records.run_record import RunRecord
from llmb.records.sweep_overview import MeasuredPoint, Point, PointState, SweepPlan

#: Results: a resumed sweep does not repeat points in such a state.
KEPT = ("measured", "out_of_memory", "predicted_out_of_memory")
NO_MEMORY = ("out_of_memory", "predicted_out_of_memory")


@dataclass(frozen=True)
class Boundary:
    """The smallest batch size of a precision that was out of memory."""

    batch_size: int
    #: Refused by the memory arithmetic, before any allocation.
    predicted: bool


def measured_point(record: RunRecord) -> MeasuredPoint:
    """Return the figures of ``record``."""
    result, search = record.result, record.batch_size_search
    return MeasuredPoint(
        run_id=record.run_id,
        batch_size=record.config.batch_size,
        tokens_per_second=result.tokens_per_second,
        ci95=result.ci95,
        interval_values=interval_values(record.timing.repeats),
        ceiling_tokens_per_second=ceiling_tokens_per_second(record),
        fraction_of_ceiling=result.fraction_of_ceiling,
        peak_memory_bytes=result.peak_memory_bytes,
        verdict=record.audit.verdict,
        class_=record.class_,
        effective_precision=record.precision.effective,
        trials=search.trials if search else (),
    )


def ceiling_tokens_per_second(record: RunRecord) -> float | None:
    """Return the measured ceiling divided by FLOPs per token, in tokens/s of all devices.

    None if the record has no ceiling for the run's own format and sequence length. Example:
    100 TFLOP/s per device, 10 GFLOPs per token and 2 devices give 20,000 tokens/s.
    """
    ceilings, flops = record.ceilings, record.workload.flops_per_token
    if record.result.fraction_of_ceiling is None or ceilings is None or flops <= 0:
        return None
    attainable = max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
    return attainable / flops * record.topology.world_size


def walk(plan: SweepPlan, visit: Callable[[Point], PointState]) -> tuple[PointState, ...]:
    """Return the states of all points in order; ``visit`` reads or runs a point.

    Points after a batch size that was out of memory are not visited: ``not_tried``. Doubling ends
    at the first point without a measurement, such as out of memory or failed: the states of larger
    batch sizes are then unknown.
    """
    found: list[PointState] = []
    for precision in plan.precisions:
        end: PointState | None = None
        for point in plan.points(precision):
            state = visit(point) if end is None else _beyond(point, end)
            found.append(state)
            end = state if state.status in NO_MEMORY else end
            if plan.doubles and state.status != "measured":
                break
    return tuple(found)


def _beyond(point: Point, end: PointState) -> PointState:
    return PointState(
        precision=point.precision,
        batch_size=point.batch_size,
        status="not_tried",
        message=f"not tried: batch size {end.batch_size} is out of memory",
    )


def best(states: Sequence[PointState]) -> Mapping[str, PointState]:
    """Return the fastest run of each precision; INVALID runs do not count."""
    found: dict[str, PointState] = {}
    for state in states:
        if state.measured is None or state.measured.verdict is Verdict.INVALID:
            continue
        before = found.get(state.precision)
        if before is None or _rate(state) > _rate(before):
            found[state.precision] = state
    return found


def tied(states: Sequence[PointState]) -> Mapping[str, tuple[PointState, ...]]:
    """Return precision -> points that cannot be told apart from the fastest point.

    The 95 % intervals of both points overlap, or an interval is missing. INVALID runs do not
    count. Example: 400 to 440 tokens/s and 420 to 460 tokens/s overlap.
    """
    found = {}
    for precision, first in best(states).items():
        others = (
            state
            for state in states
            if state.precision == precision and state is not first and _may_be_best(state, first)
        )
        found[precision] = tuple(others)
    return {precision: others for precision, others in found.items() if others}


def _may_be_best(state: PointState, first: PointState) -> bool:
    one, other = state.measured, first.measured
    if one is None or other is None or one.verdict is Verdict.INVALID:
        return False
    return one.ci95 is None or other.ci95 is None or one.ci95[1] >= other.ci95[0]


def boundary(states: Sequence[PointState], precision: str) -> Boundary | None:
    """Return the smallest batch size of ``precision`` out of memory, None if all fitted.

    Points of the sweep and trials of the runs' own batch-size searches both count.
    """
    found: list[Boundary] = []
    for state in states:
        if state.precision != precision:
            continue
        if state.status in NO_MEMORY and state.batch_size is not None:
            found.append(Boundary(state.batch_size, state.status == "predicted_out_of_memory"))
        found += [
            Boundary(trial.batch_size, trial.status == "predicted_out_of_memory")
            for trial in (state.measured.trials if state.measured else ())
            if trial.status in NO_MEMORY
        ]
    return min(found, key=lambda each: each.batch_size, default=None)


def _rate(state: PointState) -> float:
    return state.measured.tokens_per_second if state.measured else 0.0
