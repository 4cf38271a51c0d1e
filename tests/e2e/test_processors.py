"""Processors with and without 16-bit instructions: choice, audit and estimate, for real."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmb.plugin.builtin import host
from tests.e2e import harness

pytestmark = pytest.mark.skipif("avx2" not in host.cpu_flags(), reason="OLD_PROCESSOR is an x86")


@pytest.mark.parametrize("precision", ["BF16", "FP16"])
def test_without_16_bit_instructions_a_run_is_consistent_and_says_how_it_computes(
    tmp_path: Path, precision: str
) -> None:
    flags = ("--plugin=cpu", f"--precision={precision}", *harness.TINY_RUN)
    ended = harness.run(tmp_path / "out", *flags, **harness.OLD_PROCESSOR)
    assert ended.finished, ended.stderr
    record = ended.record
    assert record["config"]["precision"]["products"] == "FP32"
    assert record["precision"] | {"bits": None} == {
        "declared": precision,
        "effective": precision,
        "bits": None,
        "how": "measured",
    }
    assert {record["ceilings"][when]["precision"] for when in ("before", "after")} == {"FP32"}
    assert record["result"]["fraction_of_ceiling"] is not None
    assert record["audit"]["verdict"] == "CONSISTENT", record["audit"]
    assert f"{precision} (products in FP32) declared, effective {precision}" in ended.stdout


def test_the_way_can_be_chosen_on_any_processor(tmp_path: Path) -> None:
    flags = ("--plugin=cpu", "--precision=BF16", "-O", "products=wide", *harness.TINY_RUN)
    ended = harness.run(tmp_path / "out", *flags)
    assert ended.finished, ended.stderr
    assert ended.record["config"]["precision"]["products"] == "FP32"
    assert ended.record["config"]["plugin_options"]["products"] == "wide"
    assert ended.record["audit"]["verdict"] == "CONSISTENT"


@pytest.mark.parametrize(("variables", "narrow"), [({}, None), (harness.OLD_PROCESSOR, "FP32")])
def test_without_a_workload_the_largest_size_in_time_is_run_and_the_time_is_recorded(
    tmp_path: Path, variables: dict[str, str], narrow: str | None
) -> None:
    # No size ends within a second: the soonest is run, with all of its 50 steps.
    flags = ("--plugin=cpu", "--within=1s", "--audit=quick", "--precision=BF16")
    ended = harness.run(tmp_path / "out", *flags, quiet=False, **variables)
    assert ended.finished, ended.stderr
    record = ended.record
    assert (record["workload"]["name"], record["class"]) == ("llama-45m", "official")
    assert record["config"]["precision"]["products"] == narrow
    (note,) = [line for line in ended.said if "note: llama-45m in BF16" in line]
    assert "none of which ends within 1 s" in note
    assert "--workload llama-1.4b would take" in note
    duration = record["duration"]
    assert duration["within_s"] == 1.0
    assert duration["estimated_s"] > duration["within_s"]
    assert duration["real_s"] > (record["timing"]["stop_ns"] - record["timing"]["start_ns"]) / 1e9
    assert "of the estimated" in ended.stdout


def test_within_and_a_named_workload_exclude_each_other_and_a_time_has_units(
    tmp_path: Path,
) -> None:
    both = harness.run(tmp_path / "out", "--within=5m", "--workload=llama-45m")
    assert both.code == 2
    assert "so does --workload" in both.stderr
    bare = harness.run(tmp_path / "out", "--within=10")
    assert bare.code == 2
    assert "write 90s, 30m or 1h30m" in bare.stderr
