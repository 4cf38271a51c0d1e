"""What of torch a plugin has replaced, against what it says it has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.plugin import DeclaredPatch
from llmb.sdk.checks import permitted
from tests.unit.sdk.stubs import fails

REPLACED = "torch.jit.trace"


@pytest.fixture(autouse=True)
def snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no snapshot of all torch, seconds beside so many tests: the subject answers for it."""
    monkeypatch.setattr(permitted, "Callables", lambda earlier: earlier)


def looked_at(*targets: str) -> Any:
    declared = [DeclaredPatch(target=target, reason="why") for target in targets]
    return SimpleNamespace(
        plugin=SimpleNamespace(patches=lambda: declared),
        callables=SimpleNamespace(replaced=lambda now: (REPLACED,)),
    )


@pytest.mark.parametrize("target", [REPLACED, "torch.jit.*"])
def test_what_is_declared_may_be_replaced(target: str) -> None:
    assert permitted.declared_patches(looked_at(target)) == "1 replaced and declared"


@pytest.mark.parametrize("targets", [(), ("torch.fft.*",)])
def test_what_is_not_declared_may_not(targets: tuple[str, ...]) -> None:
    fails(permitted.declared_patches, looked_at(*targets), f"{REPLACED} was replaced")
