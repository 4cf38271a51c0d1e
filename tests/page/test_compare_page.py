"""The page of a comparison in a real Chromium: on a phone in the dark, on a desk in the light."""

from __future__ import annotations

import pytest

from llmb.comparison.compare import compare_runs
from llmb.comparison.figures import run_of
from llmb.report.compare_page import compare_page
from tests.page.reading import CONTRAST
from tests.unit.comparison.test_compare import runs


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


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_runs_are_told_apart_at_every_width_and_nothing_is_loaded(watch, compared, width, scheme):
    watched = watch(compared, viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = watched.page
    places = [
        page.locator(".rows").first.locator("circle").nth(n).bounding_box()["x"] for n in range(4)
    ]
    assert places[2] < places[0] < places[1], "slower, base, faster"
    medians = [page.locator("#times line.median").nth(n).bounding_box()["x"] for n in range(4)]
    assert medians[1] < medians[0] < medians[2], "less time is further left"
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) == 0
    assert page.evaluate(CONTRAST) == []
    assert page.locator("img, script").count() == 0
    watched.shoot(f"compare-{width}-{scheme}")
    watched.well_behaved()
