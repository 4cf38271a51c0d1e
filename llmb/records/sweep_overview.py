"""A sweep on disk and on pages: the plan, the state of each point, and the overview."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from llmb.config import Frozen, JsonFile, OptionValue, RunRequest
from llmb.records.finding import Verdict
from llmb.records.run_record import BatchTrial, RunClass

# Version history of the plan, one line per change; old versions load for ever.
# llmb.sweep/1  2026-11  first version.
PLAN_SCHEMA: Literal["llmb.sweep/1"] = "llmb.sweep/1"

#: Largest batch size of doubling, in sequences, if memory never runs out before.
_MOST_SEQUENCES = 2**20


@dataclass(frozen=True)
class Point:
    """One run of a sweep. Batch size None: the run searches for the best batch size."""

    precision: str
    batch_size: int | None

    @property
    def folder(self) -> str:
        """Name of the folder for the point's run directories, such as ``BF16-batch-8``."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.precision)
        return f"{name}-batch-{'auto' if self.batch_size is None else self.batch_size}"

    def __str__(self) -> str:
        """Return the point as text for people, such as ``BF16, batch size 8``."""
        size = "found by search" if self.batch_size is None else self.batch_size
        return f"{self.precision}, batch size {size}"


class SweepRequest(Frozen):
    """The user's request for a sweep."""

    #: Settings shared by all points; without precision and batch size.
    request: RunRequest
    #: Empty: every format of the device's own hardware, none emulated.
    precisions: tuple[str, ...] = ()
    #: Sequences per step; "auto": each run searches; None: doubled until out of memory.
    batch_sizes: tuple[int, ...] | Literal["auto"] | None = None
    #: Largest batch size of doubling.
    max_batch_size: int | None = Field(default=None, ge=1)


class Ground(Frozen):
    """Software and device of a sweep: runs with other software or devices need a new sweep."""

    llmb_version: str
    rules_version: str
    reference_digest: str
    plugin: str
    distribution: str
    plugin_version: str
    #: Every option of the plugin, resolved.
    plugin_options: dict[str, OptionValue]
    device: str
    torch_version: str


class LeftOut(Frozen):
    """A format left out of the sweep, with the reason."""

    name: str
    reason: str
    #: Emulated by the device: slow, and run only if named by the user.
    emulated: bool = False


class SweepPlan(JsonFile):
    """``sweep.json``: written before the first run, and never changed."""

    schema_: Literal["llmb.sweep/1"] = Field(alias="schema", default=PLAN_SCHEMA)
    created_utc: str
    asked: SweepRequest
    ground: Ground
    #: In running order.
    precisions: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def doubles(self) -> bool:
        """Tell whether batch sizes are doubled until out of memory."""
        return self.asked.batch_sizes is None

    def points(self, precision: str) -> Iterator[Point]:
        """Yield the points of ``precision``: batch sizes as given, "auto", or doubled.

        Doubling begins with one sequence per micro-batch. Example: ``accumulate`` 2 and at most 16
        sequences give 2, 4, 8, 16.
        """
        sizes = self.asked.batch_sizes
        if sizes == "auto":
            yield Point(precision, None)
        elif sizes is not None:
            yield from (Point(precision, size) for size in sizes)
        else:
            size = self.asked.request.accumulate
            most = self.asked.max_batch_size or _MOST_SEQUENCES
            while size <= most:
                yield Point(precision, size)
                size *= 2

    def request(self, point: Point) -> RunRequest:
        """Return the run request of ``point``."""
        return self.asked.request.model_copy(
            update={
                "plugin": self.ground.plugin,
                "device": self.ground.device,
                "precision": point.precision,
                "batch_size": "auto" if point.batch_size is None else point.batch_size,
            }
        )


#: "not_tried": a smaller batch size was out of memory. "unfinished": still to be run.
Status = Literal[
    "measured",
    "out_of_memory",
    "predicted_out_of_memory",
    "failed",
    "not_tried",
    "unfinished",
]


class MeasuredPoint(JsonFile):
    """The figures of a finished run in the overview of a sweep."""

    run_id: str
    batch_size: int
    tokens_per_second: float
    ci95: tuple[float, float] | None
    #: Number of values behind ``ci95``: repeats, or fence blocks of one repeat.
    interval_values: int
    #: Tokens/s of the device's measured matrix products alone; None if not measured.
    ceiling_tokens_per_second: float | None
    fraction_of_ceiling: float | None
    peak_memory_bytes: int | None
    verdict: Verdict
    class_: RunClass = Field(alias="class")
    effective_precision: str | None
    #: Trials of the run's own batch-size search.
    trials: tuple[BatchTrial, ...] = ()


class PointState(Frozen):
    """The state of one point: measured, out of memory, failed or not run."""

    precision: str
    #: None: found by the run's own search.
    batch_size: int | None
    status: Status
    #: Reason for a missing figure, in one line.
    message: str | None = None
    #: The run directory, relative to the sweep's folder.
    run: str | None = None
    measured: MeasuredPoint | None = None
    #: Seconds from start to end of the point, if known.
    seconds: float | None = None

    @property
    def point(self) -> Point:
        """The point: precision and batch size."""
        return Point(self.precision, self.batch_size)


# Version history of the overview, one line per change.
# llmb.sweep-overview/1  2026-11  first version.
OVERVIEW_SCHEMA: Literal["llmb.sweep-overview/1"] = "llmb.sweep-overview/1"


class Overview(JsonFile):
    """The output of ``llmb sweep --json``."""

    schema_: Literal["llmb.sweep-overview/1"] = Field(alias="schema", default=OVERVIEW_SCHEMA)
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
