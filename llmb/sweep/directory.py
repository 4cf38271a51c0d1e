"""The folder of a sweep: the plan, one folder per point, and the state of each point on disk.

A point is one precision at one batch size, such as BF16 at 8 sequences per step.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from llmb.config import JsonFile
from llmb.errors import BundleRefusedError, LlmbError, RunFailedError, UsageError
from llmb.records import members, strict_json
from llmb.records.bundle import parse_model, read_record
from llmb.records.canonical import pretty_bytes
from llmb.records.run_directory import RECORD, make_first_free
from llmb.records.run_record import RunRecord
from llmb.records.sweep_overview import PLAN_SCHEMA, Point, PointState, SweepPlan
from llmb.sweep.points import measured_point

PLAN, ENDED, LOCK = "sweep.json", "point.json", ".lock"

# Version history, one line per change; old versions load for ever.
# llmb.sweep-point/1  2026-11  first version.
POINT_SCHEMA: Literal["llmb.sweep-point/1"] = "llmb.sweep-point/1"


class Ended(JsonFile):
    """``point.json``: how the latest attempt at a point ended. A finished run's record decides.

    A point without ``point.json`` and without a record was never started, or was interrupted.
    """

    schema_: Literal["llmb.sweep-point/1"] = Field(alias="schema", default=POINT_SCHEMA)
    status: Literal["measured", "out_of_memory", "predicted_out_of_memory", "failed"]
    message: str | None = None
    seconds: float = Field(ge=0)


@dataclass(frozen=True)
class SweepDirectory:
    """The folder of one sweep. Errors of a failed write name the file and the cause."""

    path: Path
    plan: SweepPlan

    @classmethod
    def create(cls, output: Path, plan: SweepPlan) -> SweepDirectory:
        """Create ``output``/sweep-<utc>-<workload>-<plugin> and write the plan there.

        Raises:
            UsageError: the folder cannot be created or written.
        """
        stamp = plan.created_utc.replace("-", "").replace(":", "")
        label = f"sweep-{stamp}-{plan.asked.request.workload}-{plan.ground.plugin}"
        try:
            output.mkdir(parents=True, exist_ok=True)
            path = make_first_free(output, label)
            _write(path / PLAN, pretty_bytes(plan))
        except OSError as error:
            raise UsageError(
                f"--output-dir {output}: cannot write there ({error.strerror}); choose another"
            ) from error
        return cls(path, plan)

    @classmethod
    def open(cls, path: Path) -> SweepDirectory:
        """Return the sweep in the folder ``path``.

        Raises:
            UsageError: the folder holds no ``sweep.json``.
            BundleRefusedError: the plan is damaged, or was written by a newer llmb.
        """
        file = path / PLAN
        if not file.exists():
            raise UsageError(f"{str(path)!r} holds no {PLAN}: it is not the folder of a sweep")
        data = strict_json.loads(members.read_file(file), str(file))
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema != PLAN_SCHEMA:
            raise BundleRefusedError(f"{str(file)!r} is not of schema {PLAN_SCHEMA}: update llmb?")
        return cls(path, parse_model(SweepPlan, data, str(file)))

    def folder(self, point: Point) -> Path:
        """Return the folder with the run directories of ``point``."""
        return self.path / point.folder

    def state(self, point: Point) -> PointState:
        """Return the state of ``point``, read from the files on disk."""
        ended = self._ended(point)
        seconds = ended.seconds if ended else None
        found = self._finished(point)
        base = {"precision": point.precision, "batch_size": point.batch_size, "seconds": seconds}
        if found is not None:
            run = found[0].relative_to(self.path).as_posix()
            return PointState.model_validate(
                {**base, "status": "measured", "run": run, "measured": measured_point(found[1])}
            )
        if ended is None or ended.status == "measured":  # the record is gone or damaged
            return PointState.model_validate({**base, "status": "unfinished"})
        return PointState.model_validate({**base, "status": ended.status, "message": ended.message})

    def write_end(self, point: Point, ended: Ended) -> None:
        """Write ``point.json``: how the attempt at ``point`` ended.

        Raises:
            RunFailedError: the file cannot be written, such as on a full disk.
        """
        target = self.folder(point) / ENDED
        with _guard(target):
            target.parent.mkdir(exist_ok=True)
            _write(target, pretty_bytes(ended))

    def write(self, name: str, data: bytes) -> None:
        """Write the file ``name`` of the sweep.

        Raises:
            RunFailedError: the file cannot be written.
        """
        with _guard(self.path / name):
            _write(self.path / name, data)

    def runs(self, point: Point) -> tuple[Path, ...]:
        """Return every run directory of ``point``, finished or not, the oldest first."""
        folder = self.folder(point)
        return tuple(sorted(p for p in folder.iterdir() if p.is_dir())) if folder.exists() else ()

    def clear(self, point: Point) -> None:
        """Prepare a new attempt at ``point``: remove ``point.json`` and scratch folders.

        Scratch folders of killed runs hold full weights, gigabytes in size. Logs and evidence of
        unfinished runs stay.
        """
        (self.folder(point) / ENDED).unlink(missing_ok=True)
        for run in self.runs(point):
            for scratch in run.glob(".scratch-*"):
                shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder against a second ``llmb sweep``; the kernel unlocks at process exit.

        Raises:
            UsageError: another sweep is at work in the folder.
        """
        with _guard(self.path / LOCK):
            file = (self.path / LOCK).open("ab")
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"{str(self.path)!r}: another llmb sweep is at work in it; wait for its end"
                ) from None
            yield

    def _finished(self, point: Point) -> tuple[Path, RunRecord] | None:
        for run in reversed(self.runs(point)):
            if not (run / RECORD).exists():
                continue
            try:
                record = read_record(run)
            except LlmbError:  # damaged: the point is run again
                continue
            if _belongs(record, point):
                return run, record
        return None

    def _ended(self, point: Point) -> Ended | None:
        file = self.folder(point) / ENDED
        if not file.exists():
            return None
        try:
            return parse_model(Ended, strict_json.loads(members.read_file(file), ENDED), ENDED)
        except BundleRefusedError:
            return None


def _belongs(record: RunRecord, point: Point) -> bool:
    sizes = (None, record.config.batch_size)
    return record.config.precision.name == point.precision and point.batch_size in sizes


def _write(target: Path, data: bytes) -> None:
    """Write ``data`` to ``target`` atomically: never half a file."""
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    os.replace(part, target)


@contextmanager
def _guard(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFailedError(
            f"cannot write {target.name} of the sweep directory: {error.strerror}; make room, "
            f"then llmb sweep --resume {target.parent}"
        ) from error
