"""Every workload in each of its modes, as a real run at tiny shapes on this machine's processor."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llmb.workloads import WORKLOADS
from tests.e2e import harness

MODES = [(name, mode.value) for name, workload in WORKLOADS.items() for mode in workload.modes]
#: The preset's answer is longer than a tiny model's sequences.
OF_MODE = {"generate": ("--new-tokens=8",)}


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
