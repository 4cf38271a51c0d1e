"""The time of a step that one replica takes alone."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.processes.modes import comparing


@pytest.mark.parametrize("layout", [None, SimpleNamespace(is_sharded=True)])
def test_only_a_replica_can_take_a_step_alone(layout: Any) -> None:
    stage: Any = SimpleNamespace(layout=layout)
    assert comparing._alone_s(None, stage) is None  # type: ignore[arg-type]


def test_the_step_alone_is_the_median_of_several_between_two_waits_for_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []
    times = iter([0, 5_000_000_000, 10_000_000_000, 12_000_000_000, 20_000_000_000, 23_000_000_000])
    monkeypatch.setattr(comparing, "_ALONE", 3)
    monkeypatch.setattr(comparing.clock, "now_ns", lambda: next(times))
    stage: Any = SimpleNamespace(
        layout=SimpleNamespace(is_sharded=False, silence=nullcontext),
        backend=SimpleNamespace(synchronize=lambda: happened.append("wait")),
    )
    task: Any = SimpleNamespace(whole_step=lambda: happened.append("step"))
    assert comparing._alone_s(task, stage) == 3.0
    assert happened == ["wait", "step", "wait"] * 3
