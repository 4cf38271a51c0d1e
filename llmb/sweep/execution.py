"""Carries out a sweep: every point without a result becomes an ordinary run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from llmb import clock, supervisor
from llmb.errors import LlmbError, NotEnoughMemoryError
from llmb.records.bundle import read_record
from llmb.records.redact import redact_paths
from llmb.records.sweep_overview import Point, PointState
from llmb.supervision.run_phases import Display
from llmb.sweep import estimate
from llmb.sweep.directory import Ended, SweepDirectory
from llmb.sweep.estimate import Took
from llmb.sweep.planning import Planned
from llmb.sweep.points import KEPT, walk


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep at the start of a point."""

    #: Number of the point, counted from 1.
    number: int
    #: Expected number of points in all, None if unknown.
    of: int | None
    #: Estimated seconds of the current and all later points, None if unknown.
    left_s: float | None
    #: Estimated seconds of all later points alone, None if unknown.
    later_s: float | None = None


class Watcher(Protocol):
    """Receives the progress of a sweep, such as the terminal display; decides nothing."""

    def begins(self, point: Point, progress: Progress) -> AbstractContextManager[Display]:
        """Return the display for the run of ``point``, about to begin."""
        ...

    def ended(self, state: PointState, *, kept: bool) -> None:
        """Show the state of a point; ``kept``: the result is from an earlier call."""
        ...


def carry_out(
    directory: SweepDirectory, planned: Planned, watcher: Watcher
) -> tuple[PointState, ...]:
    """Run every point of the sweep without a result, and return the states of all points.

    Out of memory is a result. Any other failure is recorded, and the sweep goes on. Example: a
    resumed sweep with 3 of 8 points measured goes on with the fourth.

    Raises:
        UsageError: another sweep is at work in the folder.
        RunFailedError: the folder cannot be written.
    """
    with directory.lock():
        return walk(directory.plan, _PointRunner(directory, planned, watcher).visit)


@dataclass
class _PointRunner:
    """Runs points one after another and remembers the time of each."""

    directory: SweepDirectory
    planned: Planned
    watcher: Watcher
    _took: list[Took] = field(default_factory=list)
    _visited: int = 0

    def visit(self, point: Point) -> PointState:
        """Return the state of ``point``, after a run if the point had no result."""
        state = self.directory.state(point)
        kept = state.status in KEPT
        if not kept:
            with self.watcher.begins(point, self._progress(point)) as display:
                self._attempt(point, display)
            state = self.directory.state(point)
        self._visited += 1
        self._remember(state)
        self.watcher.ended(state, kept=kept)
        return state

    def _attempt(self, point: Point, display: Display) -> None:
        """Run ``point`` and record how the run ended; an interrupt leaves the point unfinished."""
        directory = self.directory
        directory.clear(point)
        before, began_ns = directory.runs(point), clock.now_ns()

        def end(status: str, message: str | None = None) -> None:
            seconds = (clock.now_ns() - began_ns) / 1e9
            said = message and redact_paths(message)
            ended = {"status": status, "message": said, "seconds": seconds}
            directory.write_end(point, Ended.model_validate(ended))

        try:
            supervisor.run(directory.plan.request(point), directory.folder(point), display)
        except NotEnoughMemoryError as error:
            # A run refused by the memory arithmetic has made no run directory.
            predicted = directory.runs(point) == before
            end("predicted_out_of_memory" if predicted else "out_of_memory", str(error))
        except LlmbError as error:
            end("failed", str(error))
        else:
            end("measured")

    def _progress(self, point: Point) -> Progress:
        number, plan = self._visited + 1, self.directory.plan
        rest = plan.precisions[plan.precisions.index(point.precision) :]
        expected = [self.planned.expected(precision) for precision in rest]
        known = [each for each in expected if each is not None]
        if len(known) < len(expected):
            return Progress(number, None, None)
        coming = _from(point, [each for one in known for each in one.points])
        fitting = {each for one in known for each in one.fitting}
        left, later = (
            estimate.left_s([each for each in points if each in fitting], self._took)
            for points in (coming, coming[1:])
        )
        return Progress(number, self._visited + len(coming), left, later)

    def _remember(self, state: PointState) -> None:
        if state.run is None or state.seconds is None:
            return
        record = read_record(self.directory.path / state.run)
        self._took.append(Took.of(state.point, record, state.seconds))


def _from(point: Point, expected: Sequence[Point]) -> Sequence[Point]:
    """Return ``point`` and the points expected later; ``point`` itself may be unexpected.

    Example: more batch sizes fit in memory than the arithmetic predicted.
    """
    if point in expected:
        return expected[expected.index(point) :]
    return [point, *(each for each in expected if each.precision != point.precision)]
