"""A machine is measured and described, and the projection takes the description."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e import harness


def test_a_machine_is_described_for_projections_with_its_provenance(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    flags = ("--seconds=0.2", "--precision=BF16", "--plugin=cpu", "--nproc=2")
    ended = harness.call("calibrate", *flags, "--network-gbps=8", "--hardware-file", path)
    assert ended.code == 0, ended.stderr
    assert "all_reduce" in ended.stderr
    found = json.loads(path.read_bytes())
    assert 0 < found["sustained_fraction"] <= 1
    assert found["devices_per_node"] == 2
    assert found["network_bytes_per_second"] == 1e9
    assert "collectives of 2 ranks" in found["source"]
    words = ("--workload=llama-1.4b", "--world-size=2", "--global-batch=2", "--json")
    projected = harness.call("project", "--hardware", path, *words)
    assert projected.code == 0, projected.stderr
    parts = json.loads(projected.stdout)["parts"]
    assert parts["products"] > parts["data_parallel"] >= 0
    assert 0.01 < sum(parts.values()) < 1e4


def test_what_goes_with_a_description_alone_is_refused_without_one() -> None:
    ended = harness.call("calibrate", "--nproc=2")
    assert ended.code == 2
    assert ended.said[-1].endswith("--nproc goes with --hardware-file")
