"""Each mode of a run begins the work that it names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.config import Mode
from llmb.processes import loss_scale, modes
from llmb.processes.modes import inference, training


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


@pytest.mark.parametrize(("scale", "skipped"), [(1.0, 0), (0.5, 1), (2.0**-5, 5)])
def test_each_step_that_overflowed_has_halved_the_scale(scale: float, skipped: int) -> None:
    task: Any = object.__new__(training.Training)
    task._scaler = SimpleNamespace(get_scale=lambda: loss_scale.FIRST * scale)
    assert task._skipped() == skipped
    task._scaler = None
    assert task._skipped() == 0
