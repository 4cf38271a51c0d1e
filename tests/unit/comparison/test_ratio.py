"""The interval of a ratio: from the two runs' own errors, and by hand where that can be done."""

from __future__ import annotations

import math

import pytest

from llmb.comparison.figures import Figure
from llmb.comparison.ratio import ratio_of
from llmb.measure.statistics import Spread


def figure(value, error, freedom, better="more"):
    return Figure("f", "u", value, better, Spread(value, error, freedom))


def test_equal_errors_of_two_freedoms_each_make_four_by_welch() -> None:
    found = ratio_of(figure(100.0, 1.0, 2), figure(110.0, 1.1, 2))
    half = 2.7764451 * math.sqrt(2) * 0.01  # Student's t for 4, tabled
    assert found.ratio == pytest.approx(1.1)
    low, high = found.interval
    assert math.log(high / 1.1) == pytest.approx(half, rel=1e-6)
    assert math.log(1.1 / low) == pytest.approx(half, rel=1e-6)
    assert found.outcome == "better"


def test_the_other_way_round_the_interval_is_the_inverse() -> None:
    a, b = figure(100.0, 2.0, 4), figure(90.0, 1.0, 2)
    there, back = ratio_of(a, b).interval, ratio_of(b, a).interval
    assert there == pytest.approx((1 / back[1], 1 / back[0]))


@pytest.mark.parametrize(
    ("better", "value", "outcome"),
    [
        ("more", 120.0, "better"),
        ("more", 80.0, "worse"),
        ("less", 120.0, "worse"),
        ("less", 80.0, "better"),
        ("more", 101.0, "no difference shown"),
        (None, 120.0, "no interval"),
    ],
)
def test_less_time_is_better_and_more_tokens_are(better, value, outcome) -> None:
    assert ratio_of(figure(100.0, 1.0, 9, better), figure(value, 1.0, 9, better)).outcome == outcome


def test_without_an_error_of_either_there_is_no_interval() -> None:
    found = ratio_of(figure(100.0, 1.0, 9), Figure("f", "u", 200.0, "more"))
    assert (found.ratio, found.interval, found.outcome) == (2.0, None, "no interval")


def test_figures_without_any_scatter_have_an_interval_of_one_point() -> None:
    assert ratio_of(figure(1.0, 0.0, 4), figure(2.0, 0.0, 4)).interval == (2.0, 2.0)


def test_one_freedom_and_a_wild_error_give_no_infinite_end() -> None:
    found = ratio_of(figure(1.0, 100.0, 1), figure(1.0, 100.0, 1))
    assert found.interval is None or math.isfinite(found.interval[1])
