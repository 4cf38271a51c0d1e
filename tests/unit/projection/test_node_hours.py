"""The NeMo document's own arithmetic, and every way to write a rate or a plan wrongly."""

from __future__ import annotations

import pytest

from llmb.errors import UsageError
from llmb.measure.step_figures import StepFigures
from llmb.projection.node_hours import measured_rate, plan, rate, stages

PLANNED = stages("150000@512,50000@2048")


def per_100k(text: str, target: int = 4096, nodes: int = 2) -> float:
    found = rate(text)
    cost = plan(stages(f"100000@{found.length}"), [found], target, nodes).costs[0]
    assert cost.node_hours == cost.node_hours_per_100k_steps
    return cost.node_hours


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("512:1.18it/s@1024", 188.3),
        ("512:1167samples/s", 195.0),
        ("2048:0.19it/s@1024", 1169.6),
        ("2048:0.1931it/s@1024", 1150.8),  # what the printed 1151 needs
        ("2048:202samples/s", 1126.5),
        ("2048:413696tokens/s", 1126.5),
        ("512:0.0518it/s@8192", 536.25),
        ("512:422samples/s", 539.2),
    ],
)
def test_node_hours_of_100k_steps_are_the_documents(text: str, hours: float) -> None:
    assert per_100k(text) == pytest.approx(hours, abs=0.05)


def test_the_documents_training_takes_857_of_its_own_node_hours() -> None:
    rates = [rate("512:1.18it/s@1024"), rate("2048:0.1931it/s@1024")]
    found = plan(PLANNED, rates, 4096, 2)
    assert [cost.node_hours for cost in found.costs] == pytest.approx([282.5, 575.4], abs=0.05)
    assert found.node_hours == pytest.approx(857, abs=1)
    assert found.warnings == ()


def test_with_the_printed_rate_of_the_longer_sequences_it_takes_867() -> None:
    rates = [rate("512:1.18it/s@1024"), rate("2048:0.19it/s@1024")]
    assert plan(PLANNED, rates, 4096, 2).node_hours == pytest.approx(867.3, abs=0.05)


def test_rates_of_one_length_that_disagree_are_told_and_the_first_is_used() -> None:
    rates = [rate("512:1.18it/s@1024"), rate("512:1167samples/s")]
    found = plan(stages("1@512"), rates, 4096, 2)
    (warning,) = found.warnings
    assert "3.4% apart, more than rounding" in warning
    assert found.costs[0].rate is rates[0]


def test_rates_that_agree_within_rounding_are_fine() -> None:
    rates = [rate("512:1167samples/s"), rate("512:597333tokens/s")]
    assert plan(stages("1@512"), rates, 4096, 2).warnings == ()


def test_a_measured_step_is_a_rate() -> None:
    measured = measured_rate(StepFigures(1 / 1.18, 1024, 1024 * 512, 8), 512, "run")
    assert measured.samples_per_second == pytest.approx(1208.32)


def test_a_length_without_a_rate_is_refused_and_a_rate_without_a_length_told() -> None:
    with pytest.raises(UsageError, match="no rate at sequence length 2048"):
        plan(PLANNED, [rate("512:1.18it/s@1024")], 4096, 2)
    (warning,) = plan(
        stages("1@512"), [rate("512:1samples/s"), rate("64:1samples/s")], 1, 1
    ).warnings
    assert "64:1samples/s is for no length" in warning


@pytest.mark.parametrize(
    "text", ["", "150000", "150000@", "@512", "0@512", "1@0", "1@512;2@3", "1e3@512", "-1@512"]
)
def test_a_plan_is_written_as_steps_at_a_length(text: str) -> None:
    with pytest.raises(UsageError, match="STEPS@LENGTH"):
        stages(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "512", "512:", "512:1.18", "512:1.18it/s", "512:0it/s@1024", "512:0.0samples/s"),
        *("512:1it/s@0", "512:-1samples/s", "512:nansamples/s", "0:1samples/s", "9:1e9samples/s"),
    ],
)
def test_a_rate_is_written_with_its_unit(text: str) -> None:
    with pytest.raises(UsageError, match="LENGTH:RATEit/s@GLOBAL_BATCH"):
        rate(text)
