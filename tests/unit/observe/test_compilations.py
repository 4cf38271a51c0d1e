"""torch.compile's own count of what it compiled, where there is one."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from llmb.observe import compilations

NAME = "torch._dynamo.utils"


def counting(monkeypatch: pytest.MonkeyPatch, module: object) -> dict[str, float]:
    monkeypatch.setitem(sys.modules, NAME, module)
    return compilations.torchs_own()


def test_where_nothing_of_the_compiler_was_imported_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    assert compilations.torchs_own() == {}
    assert NAME not in sys.modules, "asking imports nothing"


@pytest.mark.parametrize(
    "module",
    [
        SimpleNamespace(),
        SimpleNamespace(counters={}),
        SimpleNamespace(counters=defaultdict(Counter)),
        SimpleNamespace(counters={"stats": Counter()}),
    ],
    ids=["no counter", "empty", "never used", "nothing compiled"],
)
def test_a_compiler_that_compiled_nothing_or_does_not_count_is_not_known(
    monkeypatch: pytest.MonkeyPatch, module: object
) -> None:
    assert counting(monkeypatch, module) == {}


def test_graphs_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(counters={"stats": Counter(unique_graphs=3, calls_captured=9)})
    assert counting(monkeypatch, module) == {"compilations": 3.0}


def test_a_model_that_is_compiled_once_more_counts_once_more() -> None:
    model = nn.Linear(2, 2)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    before = compilations.torchs_own().get("compilations", 0.0)
    counts = []
    for rows in (1, 1, 3):
        compiled(torch.zeros(rows, 2))
        counts.append(compilations.torchs_own()["compilations"] - before)
    assert counts == [1.0, 1.0, 2.0]
