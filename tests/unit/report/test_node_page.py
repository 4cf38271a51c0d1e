"""The page of a node: fit or not, each device against the best, and no markup from its words."""

from __future__ import annotations

import pytest

from llmb.report.node_page import node_page
from tests.unit.builders_page import HOSTILE, node_report


def test_a_slow_device_has_a_shorter_bar_and_the_verdict_comes_first() -> None:
    page = node_page(node_report())
    assert "✗ not fit" in page
    assert page.index("✗ not fit") < page.index("fast:0")
    assert 'aria-label="alone: 70%"' in page
    assert page.count('aria-label="alone: 100%"') == 2
    assert "70.0 % of the others' median" in page
    assert page.count("page of the run") == 4
    assert "2 x 10de:2330 class 0302, PCIe 5.0 x16 (now 1.0 x16), NUMA node 1" in page


@pytest.mark.parametrize("words", HOSTILE)
def test_no_word_of_a_report_becomes_markup(words: str) -> None:
    page = node_page(node_report(words))
    assert [part for part in ("<script", "<img", "<!--", "x='") if part in page] == []
    assert page.count("<svg") == node_page(node_report()).count("<svg")
    assert all(line.isprintable() for line in page.split("\n"))
    assert page.count("page of the run") == 3, "a run of another name is not linked"
