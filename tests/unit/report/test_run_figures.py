"""Figures of a run: each shape is of a stamp, and stamps that fit no figure draw none."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.measure import statistics
from llmb.records.run_record import RunRecord
from llmb.report import run_figures
from llmb.report.ceiling_parts import ceiling_parts
from llmb.report.run_figures import BarPart
from tests import builders


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return builders.make_record(repeats=3)


def styles(areas: Any, style: str) -> list[Any]:
    return [area for area in areas if area.style == style]


def test_the_timeline_has_every_step_fence_and_window_of_every_repeat(record: RunRecord) -> None:
    drawing = run_figures.timeline(record.timing)
    timed = [*styles(drawing.areas, "step-timed"), *styles(drawing.areas, "step-other")]
    assert len(timed) == 3 * 50
    assert len(styles(drawing.areas, "window")) == 3
    fences = [stroke for stroke in drawing.strokes if stroke.style == "fence"]
    assert len(fences) == sum(len(repeat.fence_ns) for repeat in record.timing.repeats)
    assert [label.text for label in drawing.labels[:2]] == ["START", "STOP"]
    assert drawing.name.startswith("50 timed steps in 5.")


def test_the_window_is_between_the_fences_and_holds_the_timed_steps(record: RunRecord) -> None:
    one = record.timing.model_copy(update={"repeats": record.timing.repeats[:1]})
    drawing = run_figures.timeline(one)
    (window,) = styles(drawing.areas, "window")
    steps = [*styles(drawing.areas, "step-timed"), *styles(drawing.areas, "step-other")]
    assert min(step.x for step in steps) == pytest.approx(window.x, abs=0.1)
    ends = max(step.x + step.width for step in steps)
    assert ends == pytest.approx(window.x + window.width, abs=0.1)
    fences = sorted({stroke.x1 for stroke in drawing.strokes if stroke.style == "fence"})
    assert fences[0] == window.x
    assert fences[-1] == pytest.approx(window.x + window.width)


def test_audited_steps_and_steps_after_the_window_are_told_apart(record: RunRecord) -> None:
    def edit(data: dict[str, Any]) -> None:
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["audited_steps"] = [7]
            stop = one["stop_ns"]
            one["tail"] = {"steps": 3, "paused_ns": stop, "told_ns": stop, "ended_ns": stop + 10**9}

    drawing = run_figures.timeline(builders.edited(record, edit).timing)
    audited = styles(drawing.areas, "step-audited")
    assert len(audited) == 3
    assert audited[0].title.startswith("step 8, ")
    after = [one for one in styles(drawing.areas, "step-untimed") if "after" in one.title]
    assert [one.title for one in after] == ["3 steps after the window, 1 s"] * 3


@pytest.mark.parametrize("clock", ["enqueue", "host"])
def test_steps_that_cannot_be_placed_are_drawn_by_fence_blocks(clock: str) -> None:
    def edit(data: dict[str, Any]) -> None:
        for one in (data["timing"], *data["timing"]["repeats"]):
            one["step_clock"] = clock
            if clock == "host":  # stamps of a clock of its own
                one["step_ns"] = [ns + 10**15 for ns in one["step_ns"]]

    one = builders.edited(builders.make_record(repeats=1), edit)
    drawing = run_figures.timeline(one.timing)
    blocks = [*styles(drawing.areas, "step-timed"), *styles(drawing.areas, "step-other")]
    assert len(blocks) == len(statistics.blocks(one.timing))
    assert blocks[0].title.startswith("steps ")


def test_every_timed_step_is_a_dot_and_falls_into_one_bin(record: RunRecord) -> None:
    trace, histogram = (
        figure(record.timing) for figure in (run_figures.step_trace, run_figures.step_histogram)
    )
    assert trace is not None
    assert histogram is not None
    assert len(trace.dots) == 50
    counts = [int(area.title.split()[0]) for area in histogram.areas]
    assert sum(counts) == 50
    assert histogram.note == f"highest bar: {max(counts)} of 50"
    tallest = max(histogram.areas, key=lambda area: area.height)
    assert tallest.title.startswith(f"{max(counts)} between ")


def test_equal_step_times_have_a_distribution(record: RunRecord) -> None:
    step_ns = tuple(10**9 + n * 10**7 for n in range(52))
    timing = record.timing.model_copy(update={"step_ns": step_ns})
    histogram = run_figures.step_histogram(timing)
    assert histogram is not None
    assert [area.title.split()[0] for area in histogram.areas] == ["50"]


def test_each_fence_block_is_a_dot_and_the_interval_a_band(record: RunRecord) -> None:
    drawing = run_figures.block_rates(record)
    assert drawing is not None
    blocks = sum(len(statistics.blocks(one)) for one in record.timing.repeats)
    assert len(drawing.dots) == blocks
    (band,) = drawing.areas
    headline = next(stroke for stroke in drawing.strokes if stroke.style == "headline")
    assert band.x < headline.x1 < band.x + band.width


def test_a_gauge_is_drawn_over_the_fences_and_missing_readings_are_left_out() -> None:
    readings = [{"power_w": 300.0, "odd": float("nan")}, {"power_w": 320.0}, {}]
    timing = builders.make_record(repeats=1).timing.model_copy(update={"telemetry": readings})
    (power,) = run_figures.gauges(timing)
    assert (power.name, power.least, power.mean, power.most) == ("power_w", 300, 310, 320)
    assert len(power.drawing.dots) == 2


def test_parts_of_a_bar_lie_side_by_side_and_never_leave_it() -> None:
    parts = [BarPart("a", 0.5, "50 %", "part-0"), BarPart("b", 0.7, "70 %", "part-1")]
    first, second = run_figures.shares_bar("x", parts).areas
    assert (first.x, first.width, second.x, second.width) == (0, 50, 50, 50)


def test_products_at_their_best_rates_and_all_else_make_the_measured_step() -> None:
    def edit(data: dict[str, Any]) -> None:
        for ceiling in data["ceilings"].values():
            for gemm in ceiling["gemms"]:
                gemm["best_s"] /= 20

    record = builders.edited(builders.make_record(repeats=1), edit)
    found = ceiling_parts(record)
    assert found is not None
    assert sum(part.share for part in found.budget) == pytest.approx(1)
    assert found.budget[-1].name == "all else"
    assert record.ceilings is not None
    step_s = (record.timing.stop_ns - record.timing.start_ns) / 1e9 / record.timing.timed_steps
    spent = sum(one.best_s * one.count for one in record.ceilings.before.gemms)
    assert 1 - found.budget[-1].share == pytest.approx(spent / step_s)


@pytest.mark.parametrize("change", ["ranks", "generate", "too fast"])
def test_a_step_that_cannot_be_divided_has_rates_and_no_budget(change: str) -> None:
    def edit(data: dict[str, Any]) -> None:
        if change == "ranks":
            data["topology"]["world_size"] = 2
        elif change == "generate":
            data["workload"]["mode"] = "generate"
        else:
            for gemm in data["ceilings"]["before"]["gemms"]:
                gemm["best_s"] = 100.0
            for gemm in data["ceilings"]["after"]["gemms"]:
                gemm["best_s"] = 100.0

    found = ceiling_parts(builders.edited(builders.make_record(repeats=1), edit))
    assert found is not None
    assert found.budget == ()
    assert len(found.products) > 4
