"""Each mode of a run begins the work that it names, and what of it one rank may do alone."""

from __future__ import annotations

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
