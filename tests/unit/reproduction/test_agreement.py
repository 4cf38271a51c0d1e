"""A ratio of two throughputs has an interval that covers what both of theirs leave open."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from llmb.reproduction.agreement import Agreement, agreement


def test_two_equal_figures_have_a_ratio_of_one_and_an_interval_around_it() -> None:
    found = agreement(100.0, (99.0, 101.0), 100.0, (99.0, 101.0))
    low, high = found.ci95 or (0.0, 0.0)
    assert found.ratio == 1.0
    assert low * high == pytest.approx(1.0)
    # Two relative errors of 1 % are together the root of two percent.
    assert math.log(high) == pytest.approx(0.01 * math.sqrt(2), rel=0.01)


def test_the_interval_of_a_figure_without_error_is_that_of_the_other() -> None:
    found = agreement(110.0, (110.0, 110.0), 100.0, (80.0, 125.0))
    assert found.ci95 == pytest.approx((110 / 125, 110 / 80))


def test_the_interval_covers_the_true_ratio_as_often_as_it_says() -> None:
    draw, covered, tries = random.Random(1), 0, 2000
    z = statistics.NormalDist().inv_cdf(0.975)
    for _ in range(tries):
        ours, theirs = draw.gauss(103, 2), draw.gauss(100, 3)
        found = agreement(
            ours, (ours - 2 * z, ours + 2 * z), theirs, (theirs - 3 * z, theirs + 3 * z)
        )
        low, high = found.ci95 or (0.0, 0.0)
        covered += low <= 1.03 <= high
    # 95 % of 2000 tries, give or take four standard deviations of a binomial count.
    assert abs(covered - 0.95 * tries) < 4 * math.sqrt(tries * 0.95 * 0.05)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(None, (1.0, 3.0)), ((1.0, 3.0), None), ((0.0, 3.0), (1.0, 3.0))]
)
def test_without_two_intervals_of_positive_rates_there_is_none(
    ours: tuple[float, float] | None, theirs: tuple[float, float] | None
) -> None:
    found = agreement(2.0, ours, 2.0, theirs)
    assert found.ci95 is None
    assert found.is_settled is None
    assert found.is_within_limit


@pytest.mark.parametrize(
    ("ratio", "within"), [(1.05, True), (0.95, True), (1.0500001, False), (0.9499999, False)]
)
def test_five_percent_is_within_the_limit(ratio: float, within: bool) -> None:
    assert Agreement(ratio, None).is_within_limit is within


@pytest.mark.parametrize(
    ("ratio", "ci95", "settled"),
    [
        (1.02, (1.00, 1.04), True),
        (1.02, (0.94, 1.10), False),
        (1.20, (1.10, 1.30), True),
        (1.08, (1.03, 1.13), False),
        (1.08, (0.80, 1.40), False),
    ],
)
def test_an_interval_settles_it_only_where_all_of_it_says_the_same(
    ratio: float, ci95: tuple[float, float], settled: bool
) -> None:
    assert Agreement(ratio, ci95).is_settled is settled
