"""Places of a figure: an axis holds its numbers, and ticks are round and lie on the axis."""

from __future__ import annotations

import math

import pytest

from llmb.report.drawing import Axis, Drawing, seconds, thinned, time_axis, x_axis


def test_an_axis_holds_every_value_and_its_margin() -> None:
    axis = Axis.around([2.0, 4.0, math.nan, math.inf], 0.25)
    assert (axis.low, axis.high) == (1.5, 4.5)
    assert [axis.place(value) for value in (1.5, 3.0, 4.5)] == [0, 50, 100]


@pytest.mark.parametrize("values", [[], [0.0], [7.0, 7.0], [-3.0], [math.nan]])
def test_an_axis_of_no_length_gets_one(values: list[float]) -> None:
    axis = Axis.around(values)
    assert axis.high > axis.low
    assert all(0 < axis.place(value) < 100 for value in values if math.isfinite(value))


def test_a_value_beyond_the_axis_is_placed_at_its_end() -> None:
    axis = Axis(0.0, 10.0)
    assert (axis.place(-5), axis.place(50)) == (0, 100)
    assert not axis.holds(50)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 45, (0, 10, 20, 30, 40)),
        (0.12, 0.19, (0.12, 0.14, 0.16, 0.18)),
        (-1, 1, (-1, -0.5, 0, 0.5, 1)),
    ],
)
def test_ticks_are_round_numbers_on_the_axis(
    low: float, high: float, ticks: tuple[float, ...]
) -> None:
    assert Axis(low, high).ticks() == pytest.approx(ticks)


def test_labels_at_the_ends_stay_inside_the_figure() -> None:
    _, labels = x_axis(Axis(0, 10), 20, lambda value: f"{value:g}")
    assert [(one.text, one.anchor) for one in labels if one.anchor != "middle"] == [
        ("0", "start"),
        ("10", "end"),
    ]


def test_a_time_axis_has_one_unit() -> None:
    _, labels = time_axis(Axis(0.0, 1100.0), 20)
    assert [one.text for one in labels] == ["0 min", "5 min", "10 min", "15 min"]
    _, labels = time_axis(Axis(0.0, 0.0042), 20)
    assert {one.text.split()[1] for one in labels} == {"ms"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0182, "18.2 ms"),
        (0.0, "0 s"),
        (3.89, "3.89 s"),
        (4.2e-6, "4.2 µs"),
        (1089.0, "18.15 min"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(value: float, text: str) -> None:
    assert seconds(value) == text


def test_values_are_thinned_evenly_and_the_first_stays() -> None:
    assert [index for index, _ in thinned(range(10), 4)] == [0, 3, 6, 9]
    assert len([*thinned(range(10_000), 400)]) == 400


def test_points_of_a_trace_are_a_thousand_wide() -> None:
    assert Drawing("", 10, traces=(((0.0, 1.0), (100.0, 2.5)),)).paths == ("0.0,1.0 1000.0,2.5",)
