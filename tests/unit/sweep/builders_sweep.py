"""Plans, folders and run directories of sweeps: records as a run leaves them, no worker needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmb.config import BF16, FP32, RunRequest
from llmb.records.run_record import RunRecord
from llmb.records.sweep_overview import LeftOut, Point, SweepPlan, SweepRequest
from llmb.sweep.directory import SweepDirectory
from llmb.sweep.plan import ground_of
from tests import builders
from tests.unit.builders_runtime import offer

CREATED = "2026-11-22T12:00:00Z"
FORMATS = {"BF16": BF16, "FP32": FP32}


def asked(**changes: Any) -> SweepRequest:
    return SweepRequest(**{"request": RunRequest(), "batch_sizes": (1, 2, 4), **changes})


def plan(*precisions: str, left_out: tuple[LeftOut, ...] = (), **changes: Any) -> SweepPlan:
    """Return a plan of ``precisions`` on the CPU; ``changes`` are what was asked otherwise."""
    return SweepPlan(
        created_utc=CREATED,
        asked=asked(**changes),
        ground=ground_of(offer()),
        precisions=precisions or ("BF16",),
        left_out=left_out,
    )


def sweep(tmp_path: Path, *precisions: str, **changes: Any) -> SweepDirectory:
    return SweepDirectory.create(tmp_path / "runs", plan(*precisions, **changes))


def record_of(point: Point, number: int = 1, faster: float = 1.0, repeats: int = 3) -> RunRecord:
    """Return the record of a run of ``point``; ``faster``: its rate, times the builders' own."""

    def edit(data: dict[str, Any]) -> None:
        data["run_id"] = f"{number:032x}"
        data["config"]["precision"] = FORMATS[point.precision].model_dump(mode="json")
        data["config"]["batch_size"] = point.batch_size or 8
        if point.batch_size is not None:
            data["batch_size_search"] = None
        result = data["result"]
        result["tokens_per_second"] *= faster
        result["fraction_of_ceiling"] *= faster
        result["ci95"] = [end * faster for end in result["ci95"]]

    return builders.edited(builders.make_record(repeats=repeats), edit)


def finish(directory: SweepDirectory, point: Point, number: int = 1, faster: float = 1.0) -> Path:
    """Leave a finished run of ``point`` in its folder."""
    folder = directory.folder(point) / f"20261122T12000{number}Z-llama-1.4b-{point.precision}-cpu"
    return builders.write(folder, builders.run_files(record_of(point, number, faster)))


def interrupt(directory: SweepDirectory, point: Point) -> Path:
    """Leave the run directory of a run that was killed, its whole weights and all."""
    folder = directory.folder(point) / "20261122T115900Z-llama-1.4b-interrupted"
    return builders.write(folder, {"log.txt": b"began\n", ".scratch-0/weights": b"many"})
