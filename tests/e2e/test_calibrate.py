"""A machine is measured and described, and the projection takes the description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

from llmb.records.interconnect import CollectiveKind
from tests.e2e import harness


def test_a_machine_is_described_for_projections_with_its_provenance(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    flags = ("--seconds=0.2", "--precision=BF16", "--plugin=cpu", "--nproc=2")
    ended = harness.call("calibrate", *flags, "--hardware-file", path, "--json")
    assert ended.code == 0, ended.stderr
    measured = json.loads(ended.stdout)
    assert {one["kind"] for one in measured["collectives"]} == set(get_args(CollectiveKind))
    assert len({one["bytes"] for one in measured["collectives"]}) == 4
    assert {"q_proj", "down_proj", "lm_head"} <= {one["name"] for one in measured["gemms"]}
    found = json.loads(path.read_bytes())
    assert found == measured["hardware"]
    assert 0 < found["sustained_fraction"] <= 1
    assert found["devices_per_node"] == 2
    assert found["link_bytes_per_second"] > 1e6
    assert found["network_bytes_per_second"] is None
    assert "collectives and messages of 2 ranks" in found["source"]
    words = ("--workload=llama-1.4b", "--world-size=2", "--global-batch=2", "--json")
    projected = harness.call("project", "job", "--hardware", path, *words)
    assert projected.code == 0, projected.stderr
    parts = json.loads(projected.stdout)["parts"]
    assert parts["products"] > parts["data_parallel"] >= 0
    assert 0.01 < sum(parts.values()) < 1e4
    more = ("--workload=llama-1.4b", "--world-size=4", "--global-batch=4")
    refused = harness.call("project", "job", "--hardware", path, *more)
    assert refused.code == 2
    assert "network_bytes_per_second is not known" in refused.said[-1]


def test_what_goes_with_a_description_alone_is_refused_without_one() -> None:
    ended = harness.call("calibrate", "--nproc=2")
    assert ended.code == 2
    assert ended.said[-1].endswith("--nproc goes with --hardware-file")


#: A plugin for a processor that emulates BF16 number by number.
EMULATING = """
    from llmb.config import BF16, FP32

    @hookimpl(tryfirst=True)
    def llmb_precisions():
        return [FP32, BF16.model_copy(update={"native": False})]
"""


def test_a_format_that_is_only_emulated_has_no_ceiling(tmp_path: Path) -> None:
    folder = harness.plugin(tmp_path, "dim", EMULATING)
    flags = ("--plugin=dim", "--precision=BF16", "--device=cpu")
    ended = harness.call("calibrate", *flags, env=harness.environment(folder))
    assert ended.code == 3
    assert "cpu only emulates it" in ended.said[-1]
