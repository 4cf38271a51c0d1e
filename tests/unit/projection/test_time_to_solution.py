"""The 1T document's formula for a step's time, against the vector worked out from it."""

from __future__ import annotations

import pytest

from llmb.errors import UsageError
from llmb.projection.time_to_solution import NOTES, alpha_of, beta_of, step_time
from llmb.workloads import WORKLOADS

SHAPE = WORKLOADS["alcf-1t"].shape


def test_the_formula_gives_the_1t_models_vector() -> None:
    found = step_time(SHAPE, 512, 12, 64, alpha_of("169TFLOP/s"), beta_of("44.4GB/s", 2))
    assert found.macs_per_device == 3_852_688_743_727_104
    assert found.elements_per_device == 206_158_430_208
    assert found.compute_s == pytest.approx(45.59, abs=0.005)
    assert found.communication_s == pytest.approx(9.29, abs=0.005)
    assert found.total_s == pytest.approx(54.9, abs=0.05)


def test_alpha_and_beta_are_seconds_or_the_rates_they_come_from() -> None:
    assert alpha_of("169TFLOP/s") == alpha_of(str(2 / 169e12))
    assert beta_of("44.4GB/s", 2) == pytest.approx(beta_of(str(2 / 44.4e9), 4))
    assert beta_of("1MB/s", 4) == 4e-6
    assert beta_of("0", 2) == 0.0


@pytest.mark.parametrize("text", ["1.69e14", "-1e-14", "0", "nan", "inf", "fast", "", "169GB/s"])
def test_an_alpha_as_the_document_words_it_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--alpha"):
        alpha_of(text)


@pytest.mark.parametrize("text", ["44.4e9", "-1", "nan", "44.4GFLOP/s", "0GB/s"])
def test_a_beta_as_the_document_words_it_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--beta .*44\.4GB/s"):
        beta_of(text, 2)


def test_both_errors_of_dimension_are_told() -> None:
    assert "alpha" in NOTES[0]
    assert "seconds a multiply-add" in NOTES[0]
    assert "beta" in NOTES[1]
    assert "seconds an element" in NOTES[1]
