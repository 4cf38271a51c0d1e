"""A test for a project of yours: training must not become slower than a stored result.

    llmb run --preset debug --precision BF16 --timed-steps 40     # once, on a good day
    cp -r runs/2026... baseline                                   # or a bundle, folder or zip
    BASELINE=baseline pytest examples/pytest

``LEAST`` is the least allowed ratio: 0.9 unless set. On machines that change, require the share of
the ceiling as here: each run measures the ceiling anew, so a slower machine is no regression. On a
single quiet machine, require ``tokens_per_second``, whose worse end of the 95 % interval decides.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import llmb

BASELINE = Path(os.environ.get("BASELINE", "baseline"))
LEAST = float(os.environ.get("LEAST", "0.9"))
#: The work to measure; the baseline must be of the same work. Drop ``preset`` for real sizes.
WORK: llmb.RunOptions = {"timed_steps": 40}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> llmb.RunResult:
    """One run for all tests of this file."""
    folder = tmp_path_factory.mktemp("runs")
    return llmb.run(preset="debug", precision="BF16", output_dir=folder, **WORK)


def test_the_audit_finds_nothing(result: llmb.RunResult) -> None:
    """The audit has observed every blocking rule."""
    assert result.verdict == "CONSISTENT", [one.message for one in result.findings]


def test_training_keeps_its_share_of_the_ceiling(result: llmb.RunResult) -> None:
    """A step uses the device as well as the step of the baseline did."""
    llmb.compare(BASELINE, result).require(f"fraction_of_ceiling>={LEAST}*base")
