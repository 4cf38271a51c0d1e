"""A profile is a trace that a viewer can open and a table of operators, of one step."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from llmb.plugin.builtin.cpu import CpuBackend
from llmb.processes.modes.profile import TABLE, TRACE, profile


def test_a_step_leaves_a_chrome_trace_and_a_table(tmp_path: Path) -> None:
    calls: list[int] = []
    weight = torch.randn(16, 16, requires_grad=True)

    def step() -> None:
        calls.append(1)
        (weight @ weight).sum().backward()

    folder = tmp_path / "deep" / "profile"
    profile(step, CpuBackend(), folder)
    assert len(calls) == 2, "once before, so that nothing is compiled in the trace"
    events = json.loads((folder / TRACE).read_bytes())["traceEvents"]
    named = [event for event in events if event.get("name") == "aten::mm"]
    assert len(named) == 3, "one product forward, two backward: of one step alone"
    assert all(event["dur"] >= 0 for event in named)
    assert any("Input Dims" in event.get("args", {}) for event in named)
    table = (folder / TABLE).read_text()
    assert "aten::mm" in table
    assert "Self CPU" in table
