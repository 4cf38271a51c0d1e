"""What became of a point follows from what is on disk, whatever a crash has left there."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.errors import BundleRefusedError, RunFailedError, UsageError
from llmb.records.sweep_overview import Point, SweepPlan
from llmb.sweep.directory import Ended, SweepDirectory
from tests.unit.sweep.builders_sweep import finish, interrupt, plan, sweep

ONE, TWO = Point("BF16", 1), Point("BF16", 2)


def status(directory: SweepDirectory, point: Point) -> str:
    return directory.state(point).status


def test_a_plan_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for number, changes in enumerate(
        ({}, {"batch_sizes": "auto"}, {"batch_sizes": None, "precisions": ("FP32",)})
    ):
        made = plan("BF16", **changes)
        written = SweepDirectory.create(tmp_path / str(number), made)
        assert SweepDirectory.open(written.path).plan == made
        assert written.path.name == "sweep-20261122T120000Z-llama-1.4b-cpu"


def test_two_sweeps_of_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert sweep(tmp_path).path != sweep(tmp_path).path


def test_a_point_that_was_never_come_to_is_unfinished(tmp_path: Path) -> None:
    assert status(sweep(tmp_path), ONE) == "unfinished"


def test_a_run_that_was_killed_is_unfinished_and_its_weights_are_cleared_away(
    tmp_path: Path,
) -> None:
    directory = sweep(tmp_path)
    run = interrupt(directory, ONE)
    assert status(directory, ONE) == "unfinished"
    directory.clear(ONE)
    assert not (run / ".scratch-0").exists()
    assert (run / "log.txt").exists(), "why it did not finish"


def test_a_run_with_a_record_is_a_result_with_its_figures_even_without_a_note_of_its_end(
    tmp_path: Path,
) -> None:
    directory = sweep(tmp_path)
    interrupt(directory, ONE)
    run = finish(directory, ONE, number=7)
    found = directory.state(ONE)
    assert found.status == "measured"
    assert found.measured is not None
    assert found.measured.run_id == f"{7:032x}"
    assert directory.path / str(found.run) == run
    assert found.seconds is None
    assert status(directory, TWO) == "unfinished"


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": "llmb.run/1"}'])
def test_a_point_whose_record_cannot_be_read_is_run_again(tmp_path: Path, damage: bytes) -> None:
    directory = sweep(tmp_path)
    (finish(directory, ONE) / "record.json").write_bytes(damage)
    directory.write_end(ONE, Ended(status="measured", seconds=3.0))
    assert status(directory, ONE) == "unfinished"


def test_a_run_of_another_point_is_no_result_of_this_one(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    finish(directory, TWO).parent.rename(directory.folder(ONE))
    assert status(directory, ONE) == "unfinished"


@pytest.mark.parametrize("end", ["failed", "out_of_memory", "predicted_out_of_memory"])
def test_how_a_point_ended_is_kept_with_its_reason(tmp_path: Path, end: str) -> None:
    directory = sweep(tmp_path)
    ended = Ended.model_validate({"status": end, "message": "so it went", "seconds": 2.5})
    directory.write_end(ONE, ended)
    found = SweepDirectory.open(directory.path).state(ONE)
    assert (found.status, found.message, found.seconds) == (end, "so it went", 2.5)


def test_a_new_attempt_forgets_how_the_last_one_ended(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    directory.write_end(ONE, Ended(status="failed", message="x", seconds=1.0))
    directory.clear(ONE)
    assert status(directory, ONE) == "unfinished"


def test_a_note_that_was_half_written_is_none(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    directory.write_end(ONE, Ended(status="failed", message="x", seconds=1.0))
    file = directory.folder(ONE) / "point.json"
    file.write_bytes(file.read_bytes()[:20])
    assert status(directory, ONE) == "unfinished"


def test_a_folder_without_a_plan_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not the folder of a sweep"):
        SweepDirectory.open(tmp_path)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda text: text[:40], "not strict JSON"),
        (lambda text: text.replace("llmb.sweep/1", "llmb.sweep/2"), "update llmb"),
        (lambda text: text.replace('"precisions": [', '"more": 1,\n "precisions": [', 1), "more"),
        (lambda text: text.replace('"batch_sizes"', '"batch_size"'), "batch_size"),
    ],
    ids=["half", "newer", "a field more", "a field of another name"],
)
def test_a_damaged_plan_is_refused_with_what_is_wrong(tmp_path: Path, edit, words: str) -> None:
    directory = sweep(tmp_path)
    file = directory.path / "sweep.json"
    file.write_text(edit(file.read_text()))
    with pytest.raises(BundleRefusedError, match=words):
        SweepDirectory.open(directory.path)


def test_two_sweeps_cannot_work_in_one_folder(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    refused = pytest.raises(UsageError, match="another llmb sweep")
    with directory.lock(), refused, directory.lock():
        pass
    with directory.lock():
        pass


def test_where_nothing_can_be_written_the_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--output-dir"):
        SweepDirectory.create(tmp_path / "file", plan())


def test_a_disk_that_takes_no_more_is_told_with_how_to_go_on(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    directory.folder(ONE).touch()  # no folder can be made there
    with pytest.raises(RunFailedError, match=r"cannot write point\.json"):
        directory.write_end(ONE, Ended(status="failed", seconds=0.0))


def test_nothing_in_a_plan_may_be_of_a_wrong_kind() -> None:
    with pytest.raises(ValueError, match="max_batch_size"):
        plan(max_batch_size=0)
    assert SweepPlan.model_validate(plan().model_dump(mode="json", by_alias=True)) == plan()


def test_a_file_of_the_sweep_is_written_as_it_is(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    directory.write("sweep.svg", b"<svg/>")
    assert (directory.path / "sweep.svg").read_bytes() == b"<svg/>"


def test_of_two_finished_runs_the_latest_is_the_points(tmp_path: Path) -> None:
    directory = sweep(tmp_path)
    finish(directory, ONE, number=1)
    latest = finish(directory, ONE, number=2)
    assert directory.path / str(directory.state(ONE).run) == latest


@pytest.mark.parametrize("other", [Point("FP32", 1), Point("BF16", 2)])
def test_a_run_of_another_format_or_size_is_not_the_points(tmp_path: Path, other: Point) -> None:
    directory = sweep(tmp_path, "BF16", "FP32")
    finish(directory, other).rename(directory.folder(ONE))
    moved = directory.folder(ONE).rename(directory.path / "aside")
    directory.folder(ONE).mkdir()
    moved.rename(directory.folder(ONE) / "20261122T120001Z-x")
    assert status(directory, ONE) == "unfinished"
