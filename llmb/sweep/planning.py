"""Makes a plan: asks the plugins for offers, and sorts precisions into runnable and left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmb import clock, workloads
from llmb.config import RunRequest
from llmb.errors import NotEnoughMemoryError, UsageError
from llmb.records.sweep_overview import LeftOut, Point, SweepPlan, SweepRequest
from llmb.supervision import negotiation, selection
from llmb.supervision.choices import check_installed
from llmb.sweep.plan import check_same, ground_of
from llmb.wire.messages import Offer
from llmb.workloads import Workload


@dataclass(frozen=True)
class ExpectedPoints:
    """The points of a precision that a sweep should reach, by the memory arithmetic."""

    fitting: tuple[Point, ...]
    #: The first point too large for the memory; refused at once, without a run.
    end: Point | None = None

    @property
    def points(self) -> tuple[Point, ...]:
        """All expected points, in order."""
        return self.fitting if self.end is None else (*self.fitting, self.end)


@dataclass(frozen=True)
class Planned:
    """A plan, with the plugin's offer behind the plan."""

    plan: SweepPlan
    offer: Offer
    #: Reasons for not choosing a vendor's plugin, shown to the user.
    notes: tuple[str, ...] = ()

    def expected(self, precision: str) -> ExpectedPoints | None:
        """Return the expected points of ``precision``, None if doubling has no known end.

        The end is unknown if batch sizes are doubled and the plugin reports no memory size.
        """
        if self.plan.doubles and self.offer.available_memory_bytes is None:
            return None
        found: list[Point] = []
        for point in self.plan.points(precision):
            if not _fits(self.offer, self.plan.request(point)):
                return ExpectedPoints(tuple(found), point)
            found.append(point)
        return ExpectedPoints(tuple(found))


def make(asked: SweepRequest) -> Planned:
    """Return a new plan for the request ``asked``, with the chosen plugin's offer.

    Raises:
        LlmbError: no plugin serves the request; or as ``settle``.
    """
    return settle(asked, _choose(asked.request))


def settle(asked: SweepRequest, chosen: negotiation.Chosen) -> Planned:
    """Return a new plan for the request ``asked`` with the offer ``chosen``.

    Raises:
        LlmbError: a precision named by the user cannot be run, or no precision can; see
            ``selection``.
    """
    _check_sizes(asked)
    offer = chosen.offer
    precisions, left_out = _sort_out(asked, offer)
    plan = SweepPlan(
        created_utc=clock.utc_now().isoformat().replace("+00:00", "Z"),
        asked=asked,
        ground=ground_of(offer),
        precisions=precisions,
        left_out=left_out,
    )
    return Planned(plan, offer, chosen.notes)


def again(plan: SweepPlan, place: str) -> Planned:
    """Return ``plan`` with the plugin's current offer, to resume a sweep.

    Raises:
        UsageError: llmb, the plugin, torch or the device has changed since the sweep began.
        LlmbError: the plugin offers nothing.
    """
    same = {"plugin": plan.ground.plugin, "device": plan.ground.device}
    chosen = _choose(plan.asked.request.model_copy(update=same))
    check_same(ground_of(chosen.offer), plan.ground, place)
    return Planned(plan, chosen.offer)


def _choose(request: RunRequest) -> negotiation.Chosen:
    check_installed(request.executor)
    return negotiation.choose(request)


def _with_mode(request: RunRequest) -> RunRequest:
    mode = workloads.mode_of(workloads.of(request), request.mode)
    return request.model_copy(update={"mode": mode})


def _check_sizes(asked: SweepRequest) -> None:
    parts, most = asked.request.accumulate, asked.max_batch_size
    if most is not None and asked.batch_sizes is not None:
        raise UsageError("--max-batch-size is where doubling ends: leave it or --batch-size out")
    if most is not None and most < parts:
        raise UsageError(f"--max-batch-size {most} is less than --accumulate {parts}")
    for size in asked.batch_sizes if isinstance(asked.batch_sizes, tuple) else ():
        if size % parts:
            raise UsageError(
                f"--batch-size {size} cannot be accumulated in {parts} equal parts: "
                f"use multiples of {parts}"
            )


def _sort_out(asked: SweepRequest, offer: Offer) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    """Return the precisions to run, and the precisions left out with reasons.

    Raises:
        LlmbError: a precision named by the user cannot be run, or no precision is left.
    """
    request = _with_mode(asked.request)
    workload = workloads.of(request)
    usual = [precision.name for precision in offer.precisions if not precision.is_slow]
    taken: dict[str, None] = {}
    left_out: list[LeftOut] = []
    for name in asked.precisions or usual:
        try:
            taken[_settled(offer, request, workload, name)] = None
        except UsageError as error:
            if asked.precisions:
                raise
            left_out.append(LeftOut(name=name, reason=str(error)))
    if not taken and left_out:
        raise UsageError(left_out[0].reason)
    if not taken:
        raise UsageError(
            f"plugin {offer.plugin!r} computes in no format by itself on {offer.device}: "
            "name a --precision"
        )
    mentioned = {*taken, *(each.name for each in left_out)}
    left_out += [each for each in _others(offer) if each.name not in mentioned]
    return tuple(taken), tuple(left_out)


def _settled(offer: Offer, request: RunRequest, workload: Workload, name: str) -> str:
    """Return the format's official name if ``request`` supports the format; memory is not checked.

    Example: ``bf16`` gives ``BF16``.
    """
    smallest = {"precision": name, "batch_size": request.accumulate}
    try:
        config = selection.resolve(offer, request.model_copy(update=smallest), workload)
    except NotEnoughMemoryError:
        return next(p.name for p in offer.precisions if p.name.upper() == name.upper())
    return config.precision.name


def _others(offer: Offer) -> Iterator[LeftOut]:
    """Yield emulated formats (run only if named) and formats not offered, with reasons."""
    for precision in offer.precisions:
        if precision.is_slow:
            reason = f"{offer.device} only emulates it"
            yield LeftOut(name=precision.name, reason=reason, emulated=True)
    for refused in selection.not_offered(offer):
        yield LeftOut(name=refused.name, reason=refused.reason)


def _fits(offer: Offer, request: RunRequest) -> bool:
    """Tell whether ``request`` should fit in memory; always true for a batch-size search."""
    if not isinstance(request.batch_size, int):
        return True
    try:
        request = _with_mode(request)
        selection.resolve(offer, request, workloads.of(request))
    except NotEnoughMemoryError:
        return False
    return True
