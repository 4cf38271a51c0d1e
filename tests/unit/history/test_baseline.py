"""A run beside its baseline: what decides on one machine, on moving ones, and on strange ones."""

from __future__ import annotations

import pytest

from llmb.history.baseline import decide
from llmb.records.finding import Verdict
from tests.unit.builders_history import CEILING, line, lines, noisy

STEADY = lines(noisy(10, deviation=0.005))
#: Noisy neighbours: rate and ceiling go up and down together, by 20 %.
SPEEDS = (0.8, 1.1, 0.95, 1.2, 0.85, 1.0, 1.15, 0.9, 1.05, 0.88)
MOVING = [
    line(n, 1000 * speed * noise / 1000, CEILING * speed)
    for n, (speed, noise) in enumerate(zip(SPEEDS, noisy(10, deviation=0.005), strict=True))
]
MACHINES = [
    one.model_copy(update={"device": f"machine {n}", "cpu": f"machine {n}"})
    for n, one in enumerate(MOVING)
]


def of(run, base, **options):
    return decide(run, "main", base, **options)


@pytest.mark.parametrize(
    ("rate", "outcome"),
    [
        (950, "regression"),
        (1050, "improvement"),
        (1001, "no change shown"),
        (997, "no change shown"),
    ],
)
def test_on_a_steady_machine_tokens_decide(rate, outcome) -> None:
    found = of(line(50, rate), STEADY)
    assert (found.outcome, found.measure) == (outcome, "tokens/s")
    assert found.ci95[0] < found.change < found.ci95[1]
    assert f"{found.change:+.1%}"[:-1] in found.conclusion


@pytest.mark.parametrize("base", [MOVING, MACHINES], ids=["one that moves", "many"])
@pytest.mark.parametrize(
    ("speed", "outcome"), [(0.8, "no change shown"), (0.7, "no change shown"), (1.3, None)]
)
def test_a_slower_machine_is_no_regression(base, speed, outcome) -> None:
    found = of(line(50, 1000 * speed, CEILING * speed), base)
    assert found.measure == "share of ceiling"
    assert found.outcome == (outcome or "no change shown")


@pytest.mark.parametrize("base", [MOVING, MACHINES], ids=["one that moves", "many"])
@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_five_percent_are_found_on_machines_that_move(base, speed) -> None:
    found = of(line(50, 950 * speed, CEILING * speed), base)
    assert (found.outcome, found.measure) == ("regression", "share of ceiling")
    assert found.change == pytest.approx(-0.05, abs=0.01)


def test_a_slower_day_of_a_steady_machine_is_no_regression_and_a_reader_is_warned() -> None:
    found = of(line(50, 900, 0.9 * CEILING), STEADY)
    assert found.outcome == "no change shown"
    assert any("a plugin can lower the ceiling" in note for note in found.notes)
    assert of(line(50, 900, 0.9 * CEILING), STEADY, chosen="tokens").outcome == "regression"


def test_a_higher_ceiling_accuses_no_run_that_is_as_fast_as_before() -> None:
    assert of(line(50, 1000, 1.2 * CEILING), STEADY).outcome == "no change shown"


def test_a_machine_that_no_run_of_the_baseline_is_of_is_given_room() -> None:
    other = {"device": "other", "cpu": "other"}
    found = of(line(50, 400, 0.5 * CEILING, **other), STEADY)
    assert (found.outcome, found.measure) == ("no change shown", "share of ceiling")
    assert any("no run of the baseline is of this machine" in note for note in found.notes)
    assert of(line(50, 250, 0.5 * CEILING, **other), STEADY).outcome == "regression"


def test_a_step_smaller_than_the_one_that_counts_is_shown_and_no_regression() -> None:
    assert of(line(50, 980), STEADY).outcome == "regression"
    found = of(line(50, 980), STEADY, by=0.03)
    assert found.outcome == "no change shown"
    assert "smaller than the step that counts" in found.conclusion


def test_a_single_run_is_compared_by_both_intervals() -> None:
    ends = {"ci95": (990, 1010), "interval_values": 5}
    base = [line(0, 1000, **ends)]
    assert of(line(1, 950, ci95=(940, 960), interval_values=5), base).outcome == "regression"
    found = of(line(1, 992, ci95=(982, 1002), interval_values=5), base)
    assert found.outcome == "no change shown"
    assert any("fewer than 3 runs" in note for note in found.notes)


def test_a_noisy_run_counts_with_its_own_error() -> None:
    assert of(line(50, 950, ci95=(700, 1200), interval_values=5), STEADY).outcome != "regression"


@pytest.mark.parametrize(
    ("run", "base", "why"),
    [
        (line(50), [], "no run yet"),
        (line(0), [line(0)], "no run yet"),
        (line(50, work="1" * 16), STEADY, "no run of this work: llama-1.4b train, BF16"),
        (line(50, verdict=Verdict.INVALID), STEADY, "INVALID"),
        (line(50), [one.model_copy(update={"verdict": Verdict.INVALID}) for one in STEADY], "work"),
        (line(50), [line(1)], "without an interval"),
        (line(50, ceiling=None, device="x"), STEADY, "without a ceiling"),
    ],
    ids=["empty", "itself", "other work", "INVALID", "INVALID base", "no interval", "no ceiling"],
)
def test_without_figures_to_compare_nothing_is_decided(run, base, why) -> None:
    found = of(run, base)
    assert (found.outcome, found.change, found.ci95) == ("not decided", None, None)
    assert why in found.conclusion


def test_other_software_and_precision_are_remarked() -> None:
    run = line(50, 1000, torch="2.14", effective_precision="FP32", verdict="FLAGGED", load=2.0)
    text = "\n".join(of(run, STEADY).notes)
    assert "torch: 2.13 in the baseline, 2.14 in the run" in text
    assert "effective precision: BF16 in the baseline, FP32 in the run" in text
    assert "the run is FLAGGED" in text
    assert "the host was busy before the run: load 2.0 a core" in text


def test_absurd_numbers_of_a_history_end_in_a_decision() -> None:
    base = lines([1e-90, 1e90, 1e-90, 1e90], ceiling=1.0)
    found = of(line(50, 1e90, 1.0, ci95=(-5.0, 1e300), interval_values=3), base)
    assert found.outcome == "no change shown"
    assert len(found.conclusion) < 300
