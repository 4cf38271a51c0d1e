"""What the figure shows, read from the overview and from the drawing itself."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from llmb.records.sweep_overview import Overview, Point
from llmb.sweep import figure, overview
from llmb.sweep.directory import Ended
from llmb.sweep.points import Boundary
from tests.unit.sweep.builders_sweep import finish, sweep


@pytest.fixture
def found(tmp_path: Path) -> Overview:
    """Two precisions; BF16 runs out of memory at 4, FP32 at 2."""
    directory = sweep(tmp_path, "BF16", "FP32", batch_sizes=(1, 2, 4))
    for number, (name, size, faster) in enumerate(
        [("BF16", 1, 0.6), ("BF16", 2, 1.0), ("FP32", 1, 0.3)]
    ):
        finish(directory, Point(name, size), number, faster)
    for name, size in (("BF16", 4), ("FP32", 2)):
        ended = Ended(status="out_of_memory", message="too large", seconds=1.0)
        directory.write_end(Point(name, size), ended)
    return overview.of(directory)


def test_each_precision_is_a_curve_with_its_end_of_memory(found: Overview) -> None:
    bf16, fp32 = figure.curves(found)
    assert [m.batch_size for m in bf16.measured] == [1, 2]
    assert bf16.boundary == Boundary(4, predicted=False)
    assert fp32.boundary == Boundary(2, predicted=False)


def test_the_ceiling_of_a_curve_is_in_tokens_and_above_what_was_measured(found: Overview) -> None:
    for curve in figure.curves(found):
        for (size, ceiling), measured in zip(curve.ceiling, curve.measured, strict=True):
            assert size == measured.batch_size
            share = measured.tokens_per_second / ceiling
            assert share == pytest.approx(measured.fraction_of_ceiling)


def test_the_figure_is_there_as_svg_and_png_and_the_same_each_time(found: Overview) -> None:
    first, second = figure.draw(found), figure.draw(found)
    assert first == second
    assert first.keys() == {"sweep.svg", "sweep.png"}
    assert b"<svg" in first["sweep.svg"]
    width, height = struct.unpack(">II", first["sweep.png"][16:24])
    assert (width, height) == (1200, 750)


def test_where_nothing_was_measured_nothing_is_drawn(tmp_path: Path) -> None:
    assert figure.draw(overview.of(sweep(tmp_path))) == {}


def test_precisions_that_share_an_end_of_memory_take_turns_in_its_line(tmp_path: Path) -> None:
    directory = sweep(tmp_path, "BF16", "FP32", batch_sizes=(1, 2))
    for name in ("BF16", "FP32"):
        finish(directory, Point(name, 1))
        ended = Ended(status="out_of_memory", seconds=1.0)
        directory.write_end(Point(name, 2), ended)
    patterns = dash_patterns(figure.draw(overview.of(directory))["sweep.svg"].decode())
    assert len(patterns) == 2


def dash_patterns(svg: str) -> set[tuple[str, str]]:
    """Return offset and dashes of the coloured dotted lines."""
    found = set()
    for part in svg.split('style="')[1:]:
        style = dict(
            each.strip().split(": ", 1) for each in part.split('"')[0].split(";") if ": " in each
        )
        if "stroke-dasharray" in style and style["stroke"] in ("#0072b2", "#d55e00"):
            pattern = (style.get("stroke-dashoffset", "0"), style["stroke-dasharray"])
            found.add((style["stroke"], *pattern))
    dotted = {each for each in found if each[2].split(",")[0] == "2.4"}
    return {each[1:] for each in dotted}


def test_a_dollar_sign_in_a_vendors_word_starts_no_formula(found: Overview) -> None:
    ground = found.plan.ground.model_copy(update={"plugin": r"a$\frac$"})
    plan = found.plan.model_copy(update={"ground": ground})
    assert figure.draw(found.model_copy(update={"plan": plan}))


def test_a_run_that_searched_shows_its_trials_and_its_end_of_memory(tmp_path: Path) -> None:
    directory = sweep(tmp_path, batch_sizes="auto")
    finish(directory, Point("BF16", None))
    found = overview.of(directory)
    (curve,) = figure.curves(found)
    assert curve.boundary == Boundary(16, predicted=False)
    assert {t.batch_size for t in curve.measured[0].trials} == {4, 8, 16}
    assert figure.draw(found)


def test_sizes_whose_labels_would_touch_are_left_without() -> None:
    doubled = [2**n for n in range(15)]
    assert figure._apart(doubled) == doubled
    assert figure._apart([1, 2, 4, 200, 201, 202, 210, 512]) == [1, 2, 4, 200, 512]
    assert figure._apart([8]) == [8]
