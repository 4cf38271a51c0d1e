"""A sweep summed up: what is best, what failed, and what a submission has to say is missing."""

from __future__ import annotations

import json
from pathlib import Path

from llmb.records.sweep_overview import LeftOut, Point
from llmb.sweep import overview
from llmb.sweep.directory import Ended, SweepDirectory
from tests import builders
from tests.unit.sweep.builders_sweep import finish, record_of, sweep

TF32 = LeftOut(name="TF32", reason="not offered")


def test_an_overview_is_the_same_from_disk_as_from_memory(tmp_path: Path) -> None:
    directory = sweep(tmp_path, "BF16", "FP32", batch_sizes=(1, 2))
    finish(directory, Point("BF16", 1))
    found = overview.of(SweepDirectory.open(directory.path))
    assert found == overview.summed(directory.plan, found.points)
    assert found.unfinished == 3
    assert found.best.keys() == {"BF16"}


def test_what_is_missing_is_told_for_every_precision_without_a_run(tmp_path: Path) -> None:
    directory = sweep(tmp_path, "BF16", "FP32", "FP16", left_out=(TF32,), batch_sizes=(1, 2))
    finish(directory, Point("BF16", 2))
    directory.write_end(Point("FP32", 1), Ended(status="out_of_memory", seconds=1.0))
    for size in (1, 2):
        directory.write_end(Point("FP16", size), Ended(status="failed", seconds=1.0))
    found = overview.of(directory)
    assert overview.missing(found) == {
        "TF32": "not offered",
        "FP32": "batch size 1 is out of memory",
        "FP16": "its runs failed",
    }
    assert [state.point for state in found.failed] == [Point("FP16", 1), Point("FP16", 2)]


def rewritten(directory: SweepDirectory, point: Point, edit) -> None:
    """Leave a run of ``point`` whose record ``edit`` has changed."""
    record = builders.edited(record_of(point), edit)
    (finish(directory, point) / "record.json").write_text(
        json.dumps(record.model_dump(mode="json", by_alias=True))
    )


def test_an_invalid_run_is_neither_best_nor_handed_in(tmp_path: Path) -> None:
    directory = sweep(tmp_path, batch_sizes=(1,))
    rewritten(directory, Point("BF16", 1), lambda data: data["audit"].update(verdict="INVALID"))
    found = overview.of(directory)
    assert found.best == {}
    assert overview.missing(found) == {"BF16": "its runs are INVALID"}
    assert [state.point for state in found.invalid] == [Point("BF16", 1)]


def test_a_format_that_a_run_effectively_computed_in_is_not_missing(tmp_path: Path) -> None:
    directory = sweep(tmp_path, "FP32", left_out=(TF32,), batch_sizes=(1,))
    rewritten(directory, Point("FP32", 1), lambda data: data["precision"].update(effective="TF32"))
    assert overview.missing(overview.of(directory)) == {}
