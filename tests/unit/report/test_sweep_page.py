"""The page of a sweep: every point, the best of each precision, and links inside the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.records.sweep_overview import LeftOut, Point
from llmb.report.links import local_link
from llmb.report.sweep_page import sweep_page
from llmb.sweep import overview
from llmb.sweep.directory import Ended
from tests.unit.builders_page import HOSTILE
from tests.unit.sweep.builders_sweep import finish, sweep


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    reason = " ".join(HOSTILE)
    left_out = (LeftOut(name="FP8", reason=reason),)
    directory = sweep(tmp_path_factory.mktemp("sweep"), "BF16", "FP32", left_out=left_out)
    finish(directory, Point("BF16", 1), 1)
    finish(directory, Point("BF16", 2), 2, faster=1.5)
    ended = Ended.model_validate({"status": "failed", "message": reason, "seconds": 1.0})
    directory.write_end(Point("FP32", 1), ended)
    return sweep_page(overview.of(directory))


def test_each_point_has_its_figure_or_its_reason(page: str) -> None:
    assert page.count("<b>batch 2</b>") == 3, "a rate and its memory in BF16, to be run in FP32"
    assert page.count('class="class official">fastest') == 1
    assert page.index("fastest") > page.index("<b>batch 2</b>")
    assert "to be run" in page
    assert "&lt;script&gt;window.hacked=1&lt;/script&gt;" in page
    assert "<script" not in page
    assert all(line.isprintable() for line in page.split("\n"))


def test_a_point_links_to_the_page_of_its_run(page: str) -> None:
    links = [part.split('"')[0] for part in page.split('href="./')[1:]]
    assert len(links) == 2
    assert all(Path(link).name == "report.html" for link in links)


@pytest.mark.parametrize(
    "folder", [None, "", "/etc", "a/../../b", "..", "javascript:x", "a b", "a//b", "a\nb", "é"]
)
def test_a_name_that_leads_elsewhere_is_no_link(folder: str | None) -> None:
    assert local_link(folder, "report.html") is None


def test_a_plain_name_is_a_relative_link() -> None:
    assert local_link("BF16/batch-2/run", "report.html") == "./BF16/batch-2/run/report.html"
