"""What the worker says at a fence, and which program it writes down."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llmb import worker
from llmb.errors import RunFailedError
from llmb.observe import compilations
from llmb.observe.weights import FenceSamples
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.records import evidence
from llmb.reference.train_loop import Step, StepDone
from llmb.wire.messages import EvidenceFile, WorkOrder
from tests.unit.builders_runtime import run_config


class Backend(CpuBackend):
    """A backend that notes when it was waited for."""

    def __init__(self) -> None:
        self.synchronised = 0

    def synchronize(self) -> None:
        self.synchronised += 1


def fence_of(readings: dict[str, float], loss: float = 2.5) -> Any:
    backend = Backend()

    def telemetry(of: Backend) -> dict[str, float]:
        assert of is backend
        assert backend.synchronised == 1, "the device is idle when it is read"
        return readings

    parameter = torch.nn.Parameter(torch.ones(3))
    done = StepDone(Step(4, 0, fence=True), torch.tensor(loss))
    plugin = SimpleNamespace(telemetry=telemetry)
    return worker.fence(done, plugin, backend, FenceSamples([parameter], 7), 2)


def test_a_fence_carries_the_plugins_readings_and_torchs_own_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    found = fence_of({"power_w": 690.0})
    assert found.telemetry == {"compilations": 4.0, "power_w": 690.0}
    assert (found.steps, found.loss, found.starved_steps) == (5, 2.5, 2)


def test_a_plugin_that_counts_compilations_itself_knows_better_than_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    assert fence_of({"compilations": 9.0}).telemetry == {"compilations": 9.0}


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_at_its_fence(loss: float) -> None:
    with pytest.raises(RunFailedError, match=r"the loss is (nan|inf) after 5 steps"):
        fence_of({}, loss)


def notebook(folder: Path, *, wanted: bool) -> tuple[worker.Notebook, list[EvidenceFile]]:
    announced: list[EvidenceFile] = []
    order = WorkOrder(config=run_config(), evidence_folder=str(folder), collect_evidence=wanted)
    return worker.Notebook(SimpleNamespace(send=announced.append), order), announced


@pytest.mark.parametrize("text", ["HloModule step", ""])
def test_the_program_of_a_lazy_device_is_written_down_and_announced(
    tmp_path: Path, text: str
) -> None:
    book, announced = notebook(tmp_path, wanted=True)
    book.program(SimpleNamespace(program=lambda tensors: text), [torch.zeros(1)])
    assert (tmp_path / evidence.PROGRAM).read_text() == text
    assert [file.name for file in announced] == [evidence.PROGRAM]


def test_a_device_without_a_program_leaves_no_file(tmp_path: Path) -> None:
    book, announced = notebook(tmp_path, wanted=True)
    book.program(SimpleNamespace(program=lambda tensors: None), [])
    assert (list(tmp_path.iterdir()), announced) == ([], [])


def test_a_trial_does_not_even_ask_for_the_program(tmp_path: Path) -> None:
    book, announced = notebook(tmp_path, wanted=False)
    book.program(SimpleNamespace(), [])
    assert (list(tmp_path.iterdir()), announced) == ([], [])
