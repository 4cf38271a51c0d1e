"""The rank test against scipy, and against what correlated steps do to it."""

from __future__ import annotations

import pytest

from llmb.comparison.significance import rank_test
from tests.unit.builders_times import noise


def test_of_independent_steps_it_is_mann_whitneys_p_value() -> None:
    base, other = noise(400, seed=1), noise(300, seed=2, mean=0.1005)
    found = rank_test([base], [other], "steps")
    from scipy import stats  # takes longer than these tests

    expected = stats.mannwhitneyu(base, other, method="asymptotic")
    assert found.p_value_as_independent == pytest.approx(expected.pvalue, rel=1e-12)
    assert found.other_is_faster == pytest.approx(expected.statistic / (400 * 300))
    assert found.values == (400, 300)


def test_pairs_in_which_the_other_is_faster_are_counted() -> None:
    slow, fast = [2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.1, 1.2, 1.3, 5.5]
    pairs = sum(f < s for f in fast for s in slow) / 25
    assert rank_test([slow], [fast], "steps").other_is_faster == pytest.approx(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_is_detected_even_of_strongly_correlated_steps(seed) -> None:
    base = [noise(50, seed=10 * seed + n, correlation=0.8) for n in range(3)]
    other = [noise(50, seed=100 + 10 * seed + n, mean=0.09, correlation=0.8) for n in range(3)]
    found = rank_test(base, other, "steps")
    assert found.p_value < 0.01
    assert found.other_is_faster > 0.95


def test_correlated_steps_of_equal_runs_are_not_called_different_as_the_plain_test_does() -> None:
    rejected = {"plain": 0, "corrected": 0}
    trials = 200
    for seed in range(trials):
        base = [noise(200, seed=2 * seed, correlation=0.8)]
        other = [noise(200, seed=2 * seed + 1, correlation=0.8)]
        found = rank_test(base, other, "steps")
        rejected["plain"] += found.p_value_as_independent < 0.05
        rejected["corrected"] += found.p_value < 0.05
    assert rejected["plain"] > 0.35 * trials, "what is wrong with taking steps for independent"
    assert rejected["corrected"] < 0.08 * trials


def test_a_window_that_drifts_as_a_whole_is_worth_next_to_nothing() -> None:
    drift = [0.1 + 0.0001 * n for n in range(50)]
    found = rank_test([drift], [[1.001 * seconds for seconds in drift]], "steps")
    assert max(found.independent_values) < 5
    assert found.p_value > 0.5


def test_independent_steps_of_equal_runs_are_called_different_in_one_of_twenty() -> None:
    trials = 300
    rejected = 0
    for seed in range(trials):
        found = rank_test([noise(50, seed=2 * seed)], [noise(50, seed=2 * seed + 1)], "steps")
        rejected += found.p_value < 0.05
    assert rejected < 0.09 * trials


def test_correlated_steps_are_worth_fewer() -> None:
    # tau of an AR(1) process is (1 + r) / (1 - r): 9 for 0.8.
    found = rank_test(
        [noise(5000, seed=1, correlation=0.8)], [noise(5000, seed=2)], "steps"
    ).independent_values
    assert 5000 / 9 / 1.5 < found[0] < 5000 / 9 * 1.5
    assert found[1] > 3500


def test_what_lies_between_processes_is_not_taken_for_correlation_of_steps() -> None:
    processes = [noise(500, seed=seed, mean=0.1 + 0.05 * seed) for seed in range(3)]
    found = rank_test(processes, processes, "steps")
    assert found.independent_values[0] > 1000


def test_equal_times_differ_in_nothing_and_too_few_are_not_tested() -> None:
    assert rank_test([[0.5] * 20], [[0.5] * 20], "steps").p_value == 1.0
    assert rank_test([[0.5, 0.6]], [[0.5] * 20], "steps") is None
