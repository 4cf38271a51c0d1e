"""Each mode of a run begins the work that it names, and what of it one rank may do alone."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from llmb import modes
from llmb.config import Mode
from llmb.modes import comparing, inference, training


@pytest.mark.parametrize("mode", list(Mode))
def test_a_mode_begins_its_own_work_and_no_other(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (training, "Training"),
        (inference, "Forward"),
        (inference, "Generation"),
    ):
        monkeypatch.setattr(module, name, lambda stage, name=name: name)
    stage: Any = SimpleNamespace(config=SimpleNamespace(mode=mode))
    due: dict[Mode, Any] = {
        Mode.TRAIN: "Training",
        Mode.FORWARD: "Forward",
        Mode.GENERATE: "Generation",
    }
    assert modes.begin(stage) == due[mode]


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
