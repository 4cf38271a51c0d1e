"""One more step of all ranks is traced, of which rank 0's trace is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmb.processes.modes.profile import TRACE
from llmb.records.run_directory import PROFILE_FOLDER
from tests.e2e import harness


@pytest.mark.parametrize("layout", [(), ("--dp-shard=2",)], ids=["replicated", "sharded"])
def test_ranks_leave_one_trace_with_what_they_say_to_each_other(
    tmp_path: Path, layout: tuple[str, ...]
) -> None:
    flags = ("--plugin=cpu", "--precision=FP32", *harness.TINY_RUN, harness.UNAUDITED)
    ended = harness.run(tmp_path / "out", *flags, "--nproc=2", *layout, "--profile")
    assert ended.code == 0, ended.stderr
    assert "ended while" not in ended.log
    trace = json.loads((ended.directory / PROFILE_FOLDER / TRACE).read_text())
    names = {str(event.get("name", "")) for event in trace["traceEvents"]}
    assert any("gloo:" in name or "c10d::" in name for name in names)
