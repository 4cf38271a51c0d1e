"""Executors: what they need is asked for by name, and parameters stay the same objects."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from llmb.errors import UnavailableError
from llmb.processes.modes import executors
from tests.unit.builders_runtime import run_config


@pytest.mark.parametrize("executor", ["eager", "inductor"])
def test_what_torch_brings_along_needs_nothing(
    monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(executors, "import_module", asked.append)
    assert not executors.prepare(run_config(executor=executor))
    assert asked == []


def test_thunder_that_cannot_be_imported_is_said_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> types.ModuleType:
        raise AttributeError("type object 'Tensor' has no attribute 'gone'")

    monkeypatch.setattr(executors, "import_module", broken)
    for name in executors._GONE:
        monkeypatch.setattr(torch.Tensor, name, getattr(torch.Tensor, name, None), raising=False)
    with pytest.raises(UnavailableError) as caught:
        executors.prepare(run_config(executor="thunder"))
    text = str(caught.value)
    assert f"cannot be imported with torch {torch.__version__}" in text
    assert "AttributeError: type object 'Tensor' has no attribute 'gone'" in text
    assert "pip install lightning-thunder" in text


def test_eager_is_the_model_itself() -> None:
    model = nn.Linear(2, 2)
    assert executors.program(model, run_config()) is model
    assert executors.compilations(model) == {}


def test_the_compiler_leaves_every_parameter_where_it_is() -> None:
    model = nn.Linear(2, 2)
    before = dict(model.named_parameters())
    program = executors.program(model, run_config(executor="inductor"))
    assert program is not model
    assert dict(model.named_parameters()).keys() == before.keys()
    assert all(p is before[name] for name, p in model.named_parameters())
    assert "thunder" in sys.modules or executors.compilations(program) == {}


def test_thunder_counts_its_own_compilations_and_those_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ThunderModule:
        pass

    fake = types.SimpleNamespace(ThunderModule=ThunderModule, cache_misses=lambda run: 3)
    program = ThunderModule()
    monkeypatch.setitem(sys.modules, "thunder", fake)
    assert executors.compilations(program) == {"compilations": 3.0}  # type: ignore[arg-type]
    assert executors.compilations(nn.Linear(2, 2)) == {}
    monkeypatch.delitem(sys.modules, "thunder")
    assert executors.compilations(program) == {}  # type: ignore[arg-type]
