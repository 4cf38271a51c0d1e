"""The line a plugin is taken along: each station once, and what changed between two of them."""

from __future__ import annotations

import pytest
import torch

from llmb.sdk.report import SkipError
from llmb.sdk.subject import Change, Station, Watch


class Line:
    """Three run_phases; the second fails."""

    def __init__(self) -> None:
        self.made: dict[str, object] = {}
        self.failed: dict[str, str] = {}
        self.visits: list[str] = []

    @Station
    def first(self) -> int:
        self.visits.append("first")
        return 1

    @Station
    def second(self) -> int:
        self.visits.append("second")
        raise ValueError(f"after {self.first}\nand more")

    @Station
    def third(self) -> int:
        return self.second + 1


def test_a_station_is_passed_once() -> None:
    line = Line()
    assert (line.first, line.first) == (1, 1)
    assert line.visits == ["first"]


def test_a_station_that_failed_raises_once_and_is_then_a_reason_to_skip() -> None:
    line = Line()
    with pytest.raises(ValueError, match="after 1"):
        _ = line.second
    for station in ("second", "third", "third"):
        with pytest.raises(SkipError, match=r"not possible after what failed above: after 1$"):
            getattr(line, station)
    assert line.visits == ["second", "first"]


def test_a_station_asked_of_the_class_is_itself() -> None:
    assert isinstance(Line.first, Station)


@pytest.fixture
def tf32_as_it_was() -> object:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_what_changed_is_put_down_to_the_station_before_the_mark(
    monkeypatch: pytest.MonkeyPatch, tf32_as_it_was: object
) -> None:
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setenv("ACME_B", "1")
    watch = Watch()
    watch.mark("nothing")
    torch.set_float32_matmul_precision("high")
    watch.mark("a setting")
    monkeypatch.setenv("ACME_A", "1")
    monkeypatch.delenv("ACME_B")
    monkeypatch.setenv("ACME_CACHE_DIR", "/tmp")
    watch.mark("two variables")
    watch.mark("nothing")
    assert watch.settings["nothing"] == watch.variables["nothing"] == []
    names = [change.name for change in watch.settings["a setting"]]
    assert "torch.float32_matmul_precision" in names
    assert watch.variables["a setting"] == watch.settings["two variables"] == []
    assert watch.variables["two variables"] == [
        Change("ACME_A", None, "1"),
        Change("ACME_B", "1", None),
    ]


def test_a_change_says_what_was_and_what_became() -> None:
    assert str(Change("A", None, "1")) == "A was None and became '1'"
