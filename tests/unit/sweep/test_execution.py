"""A sweep makes a run of every point that is no result yet, and of no other."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.errors import NotEnoughMemoryError, RunFailedError
from llmb.records.sweep_overview import Point
from llmb.sweep import execution
from llmb.sweep.directory import Ended, SweepDirectory
from tests.unit.sweep.builders_sweep import finish, sweep

ONE, TWO, FOUR = (Point("BF16", size) for size in (1, 2, 4))


class Watched:
    """Notes which points began, and which were results before."""

    def __init__(self) -> None:
        self.began: list[Point] = []
        self.kept: dict[Point, bool] = {}
        self.numbers: list[int] = []

    def begins(self, point: Point, progress: Any) -> Any:
        self.began.append(point)
        self.numbers.append(progress.number)
        return nullcontext(None)

    def ended(self, state: Any, *, kept: bool) -> None:
        self.kept[state.point] = kept


@pytest.fixture
def directory(tmp_path: Path) -> SweepDirectory:
    return sweep(tmp_path)


def carried_out(
    directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch, **fates: BaseException
) -> tuple[Watched, dict[Point, str]]:
    """Carry the sweep out; a run ends at once, or as ``fates`` say of ``batch_N``."""

    def run(request: Any, folder: Path, display: Any) -> None:
        fate = fates.get(f"batch_{request.batch_size}")
        if fate is not None:
            raise fate
        finish(directory, Point("BF16", request.batch_size))

    monkeypatch.setattr(execution.supervisor, "run", run)
    watched = Watched()
    planned: Any = SimpleNamespace(expected=lambda precision: None)
    states = execution.carry_out(directory, planned, watched)
    return watched, {state.point: state.status for state in states}


def test_a_point_that_is_a_result_is_not_run_again(
    directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(directory, ONE)
    directory.write_end(ONE, Ended(status="measured", message=None, seconds=1.0))
    watched, status = carried_out(directory, monkeypatch)
    assert watched.began == [TWO, FOUR]
    assert watched.kept == {ONE: True, TWO: False, FOUR: False}
    assert set(status.values()) == {"measured"}


def test_a_run_out_of_memory_is_a_result_and_what_is_larger_is_not_tried(
    directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, status = carried_out(directory, monkeypatch, batch_2=NotEnoughMemoryError("no room"))
    assert watched.began == [ONE, TWO]
    assert (status[ONE], status[TWO]) == ("measured", "predicted_out_of_memory")


def test_a_run_that_fails_is_written_down_and_the_sweep_goes_on(
    directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, status = carried_out(directory, monkeypatch, batch_1=RunFailedError("it broke"))
    assert TWO in watched.began
    assert status[ONE] == "failed"


def test_points_are_counted_from_one(
    directory: SweepDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, _ = carried_out(directory, monkeypatch)
    assert watched.numbers == [1, 2, 3]
