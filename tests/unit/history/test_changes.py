"""Change points: steps are found where they are, and noise of real machines is no step."""

from __future__ import annotations

import random
import sys

import pytest

from llmb.history.changes import change_points
from tests import needs
from tests.unit.builders_history import noisy

if sys.version_info >= (3, 14):
    pytest.skip("ruptures has no release for Python 3.14", allow_module_level=True)
needs.package("ruptures")


def test_a_step_of_five_percent_is_found_at_its_run() -> None:
    values = [*noisy(30), *noisy(20, seed=1, mean=950.0)]
    (point,) = change_points(values)
    assert abs(point.at - 30) <= 1
    assert point.change == pytest.approx(-0.05, abs=0.01)
    assert point.p_value < 1e-4


def test_two_steps_are_two() -> None:
    values = [*noisy(20), *noisy(20, seed=1, mean=950.0), *noisy(20, seed=2, mean=1000.0)]
    assert [round(point.at, -1) for point in change_points(values)] == [20, 40]


@pytest.mark.parametrize("deviation", [0.0, 0.01])
def test_runs_disturbed_one_by_one_are_no_step(deviation) -> None:
    draw = random.Random(3)
    for seed in range(10):
        values = noisy(60, seed=seed, deviation=deviation)
        for at in draw.sample(range(60), 8):
            values[at] *= 0.8
        assert change_points(values) == ()


def test_a_step_without_any_noise_is_found() -> None:
    (point,) = change_points([1000.0] * 20 + [990.0] * 20)
    assert point.at == 20


@pytest.mark.parametrize("values", [[], [1.0], [1000.0] * 7, [1000.0] * 40])
def test_few_or_equal_runs_have_no_step(values) -> None:
    assert change_points(values) == ()


def test_an_unknown_value_has_no_step() -> None:
    assert change_points([*[1000.0] * 20, float("nan"), *[900.0] * 20]) == ()
