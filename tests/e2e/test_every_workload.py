"""Every workload in each of its modes, as a real run at tiny shapes on this machine's processor.

Those of docs/usage-lines.md that run here are run by its own test, and not once more; of workloads
that differ in their size alone, the first.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from llmb.config import Mode
from llmb.workloads import WORKLOADS
from tests.e2e import harness

PAGE = Path(__file__).resolve().parents[2] / "docs" / "usage-lines.md"
#: What the rows of that page run here, in the workload's own mode.
IN_PAGE = {
    found[1]
    for row in PAGE.read_text(encoding="utf-8").splitlines()
    if (found := re.search(r"`llmb run [^`]*--workload ([\w.-]+)", row))
    and re.search(r"\| (yes|one process) \|", row)
}


def _alike(name: str, mode: Mode) -> tuple[object, ...]:
    """Return what two workloads share that at tiny shapes differ in nothing but their name."""
    one = WORKLOADS[name]
    recipe = replace(one.recipe, micro_batch_size=None, accumulate=1)
    return (mode, one.family, one.document, recipe, one.scope, one.convention)


#: The first of those that are alike; tests/unit/workloads takes a step of every one.
MODES = list(
    {
        _alike(name, mode): (name, mode.value)
        for name, workload in reversed(WORKLOADS.items())
        for mode in workload.modes
        if name not in IN_PAGE or len(workload.modes) > 1
    }.values()
)
#: The preset's answer is longer than a tiny model's sequences.
OF_MODE = {"generate": ("--new-tokens=8",)}


@pytest.mark.quick
def test_the_page_of_usage_lines_runs_workloads_that_there_are() -> None:
    assert IN_PAGE
    assert set(WORKLOADS) >= IN_PAGE


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_a_workload_runs_here_in_each_of_its_modes(tmp_path: Path, name: str, mode: str) -> None:
    flags = ("--plugin=cpu", "--preset=debug", *harness.TINY, harness.UNAUDITED)
    asked = (f"--workload={name}", f"--mode={mode}", *OF_MODE.get(mode, ()))
    ended = harness.run(tmp_path / "out", *asked, *flags)
    assert ended.code == 0, ended.stderr
    record = ended.record
    assert record["class"] == "debug"
    workload, config = record["workload"], record["config"]
    assert (workload["name"], workload["family"]) == (name, WORKLOADS[name].family)
    assert (config["mode"], config["executor"]) == (mode, "eager")
    result = record["result"]
    assert result["tokens_per_second"] > 0
    assert all(math.isfinite(number) for number in _numbers(result)), result
    if mode == "train":
        assert result["loss_first"] > 0
        assert result["loss_last"] > 0


def _numbers(value: object) -> list[float]:
    """Return every number in ``value``, however deep."""
    if isinstance(value, dict):
        return [number for one in value.values() for number in _numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [float(value)] if isinstance(value, (int, float)) else []
