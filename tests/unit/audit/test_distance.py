"""Relative errors and bits, also of what is missing, of another length, or no number."""

from __future__ import annotations

import math

import pytest

from llmb.audit.distance import Gap, gap, gaps, total


def test_an_error_is_the_distance_relative_to_what_is_right() -> None:
    found = gap([3.0, 4.5], [3.0, 4.0])
    assert (found.distance, found.length, found.error) == (0.5, 5.0, 0.1)
    assert found.bits == pytest.approx(math.log2(10))


@pytest.mark.parametrize(
    ("shown", "share"),
    [([3.0, 4.0], 1.0), ([1.5, 2.0], 0.5), ([0.0, 0.0], 0.0), ([-3.0, -4.0], -1.0), (None, 0.0)],
)
def test_a_share_is_what_the_shown_values_hold_of_the_right_ones(
    shown: list[float] | None, share: float
) -> None:
    assert gap(shown, [3.0, 4.0]).share == pytest.approx(share)


def test_a_distance_alone_and_a_right_value_of_zero_have_no_share() -> None:
    assert math.isnan(Gap(1.0, 2.0).share)
    assert math.isnan(gap([1.0], [0.0]).share)
    assert not gap([math.nan, 4.0], [3.0, 4.0]).share >= 0.0


@pytest.mark.parametrize(("error", "bits"), [(2**-8, 8.0), (0.5, 1.0), (1.0, 0.0), (4.0, -2.0)])
def test_bits_halve_the_error_each(error: float, bits: float) -> None:
    assert Gap(error * 3.0, 3.0).bits == bits


def test_what_is_identical_has_the_most_bits_and_not_infinitely_many() -> None:
    assert gap([1.0, 2.0], [1.0, 2.0]).bits == 40.0
    assert gap([1.0 + 2**-50], [1.0]).bits == 40.0


@pytest.mark.parametrize("shown", [None, [], [1.0], [1.0, 2.0, 3.0]])
def test_what_was_not_shown_in_its_length_counts_as_zero(shown: list[float] | None) -> None:
    found = gap(shown, [3.0, 4.0])
    assert (found.error, found.bits) == (1.0, 0.0)


def test_something_where_nothing_is_right_is_infinitely_wrong_and_nothing_is_right() -> None:
    assert gap([1.0], [0.0]).error == math.inf
    assert gap([1.0], [0.0]).bits == -40.0
    assert gap([0.0], [0.0]).error == 0.0
    assert gap([0.0], [0.0]).bits == 40.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_wrong(bad: float) -> None:
    found = gap([1.0, bad], [1.0, 2.0])
    assert found.error == math.inf
    assert found.bits == -40.0
    assert not total([found, gap([1.0], [1.0])]).error < math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_against_a_reference_that_is_no_number_nothing_has_bits(bad: float) -> None:
    assert gap([1.0, 2.0], [1.0, bad]).bits == -40.0


def test_gaps_are_of_every_array_under_a_prefix_that_is_not_zero_and_no_loss() -> None:
    right = {
        "live/a": [1.0, 0.0],
        "live/zero": [0.0],
        "live/loss": [10.0],
        "step/a": [1.0],
        "live/b": [2.0],
    }
    found = gaps({"live/a": [1.0, 0.5]}, right, "live/")
    assert {name: one.error for name, one in found.items()} == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reference_that_is_no_number_is_not_left_out_but_stays_wrong(bad: float) -> None:
    found = gaps({"live/a": [1.0]}, {"live/a": [bad], "live/b": [0.0]}, "live/")
    assert found["a"].bits == -40.0
    assert not total(found.values()).error < math.inf
    assert "b" not in found


def test_the_gap_of_all_parts_is_that_of_the_parts_laid_end_to_end() -> None:
    parts = [gap([1.0, 2.5], [1.0, 2.0]), gap(None, [2.0, 4.0])]
    assert total(parts) == gap([1.0, 2.5, 0.0, 0.0], [1.0, 2.0, 2.0, 4.0])
    assert total([]).error == 0.0
