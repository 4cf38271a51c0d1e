"""Pages of a comparison, a sweep and a node in a real Chromium, at two widths, light and dark."""

from __future__ import annotations

import pytest

from llmb.comparison.compare import compare_runs
from llmb.comparison.figures import run_of
from llmb.records.sweep_overview import Point
from llmb.report.compare_page import compare_page
from llmb.report.node_page import node_page
from llmb.report.sweep_page import sweep_page
from llmb.sweep import overview
from tests.page.reading import readable
from tests.unit.builders_page import HOSTILE, node_report
from tests.unit.comparison.test_compare import runs
from tests.unit.sweep.builders_sweep import finish, sweep


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Four runs: a base, a faster, a slower, and one whose name tries something."""
    names = ("base", "faster", "slower", "<img src=x onerror=alert(1)>" * 4)
    measured = [
        run_of(runs(seconds, seed=20 * n, name="abcd"[n]))
        for n, seconds in enumerate((0.1, 0.08, 0.12, 0.1))
    ]
    found = [compare_runs(measured[0], run) for run in measured[1:]]
    path = tmp_path_factory.mktemp("compare") / "compare.html"
    path.write_text(compare_page(names, measured, found, [[]] * 3), encoding="utf-8")
    return path


def test_runs_of_a_comparison_are_told_apart_and_read_in_every_look(watch, compared):
    watched = watch(compared)
    page = watched.page
    places = [
        page.locator(".rows").first.locator("circle").nth(n).bounding_box()["x"] for n in range(4)
    ]
    assert places[2] < places[0] < places[1], "slower, base, faster"
    medians = [page.locator("#times line.median").nth(n).bounding_box()["x"] for n in range(4)]
    assert medians[1] < medians[0] < medians[2], "less time is further left"
    readable(watched, "compare")


def test_points_of_a_sweep_share_an_axis_and_are_read_in_every_look(watch, tmp_path):
    directory = sweep(tmp_path, "BF16", "FP32")
    finish(directory, Point("BF16", 1), 1)
    finish(directory, Point("BF16", 2), 2, faster=1.5)
    finish(directory, Point("FP32", 1), 3, faster=0.5)
    path = directory.path / "report.html"
    path.write_text(sweep_page(overview.of(directory)), encoding="utf-8")
    watched = watch(path)
    dots = watched.page.locator("circle.block")
    places = [dots.nth(n).bounding_box()["x"] for n in range(3)]
    assert places[2] < places[0] < places[1]
    link = watched.page.get_by_role("link", name="page of the run").first
    assert (directory.path / link.get_attribute("href")).parent.is_dir()
    readable(watched, "sweep")


def test_a_slow_device_of_a_node_is_seen_and_hostile_words_do_nothing(watch, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(node_page(node_report(" ".join(HOSTILE))), encoding="utf-8")
    watched = watch(path)
    bars = watched.page.get_by_label("alone: ").locator("rect.bar")
    lengths = [bars.nth(n).bounding_box()["width"] for n in range(4)]
    assert lengths[3] == pytest.approx(0.7 * lengths[0], rel=0.02)
    readable(watched, "node")
