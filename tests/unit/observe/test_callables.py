"""A replaced callable is seen wherever it was put, and what merely is new is not."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe.callables import Callables, below
from llmb.reference import optimizer as reference_optimizer


@pytest.fixture(scope="module", autouse=True)
def torch_wrapped() -> None:
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # the first makes torch wrap its own step


@pytest.fixture(scope="module")
def before(torch_wrapped: None) -> Callables:
    return Callables()


def other(*arguments: object, **named: object) -> None:
    return None


def test_nothing_has_changed_where_nothing_was_done(before: Callables) -> None:
    assert before.replaced(Callables()) == ()


@pytest.mark.parametrize(
    ("holder", "attribute", "name"),
    [
        (F, "linear", "torch.nn.functional.linear"),
        (torch.optim.AdamW, "step", "torch.optim.adamw.AdamW.step"),
        (nn.Linear, "forward", "torch.nn.modules.linear.Linear.forward"),
        (Tensor, "backward", "torch.Tensor.backward"),
        (torch.autograd, "backward", "torch.autograd.backward"),
        (time, "clock_gettime_ns", "time.clock_gettime_ns"),
        (reference_optimizer, "build_adamw", "llmb.reference.optimizer.build_adamw"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_replaced_function_or_method_is_named(
    before: Callables, monkeypatch: pytest.MonkeyPatch, holder: object, attribute: str, name: str
) -> None:
    monkeypatch.setattr(holder, attribute, other)
    assert before.replaced(Callables()) == (name,)


def test_a_method_that_hides_an_inherited_one_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "numpy" not in vars(Tensor)
    monkeypatch.setattr(Tensor, "numpy", other)
    assert before.replaced(Callables()) == ("torch.Tensor.numpy",)


def test_other_code_in_the_same_function_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F.cross_entropy, "__code__", other.__code__)
    assert before.replaced(Callables()) == ("torch.nn.functional.cross_entropy",)


def test_other_defaults_of_the_same_function_are_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F.silu, "__defaults__", (True,))
    assert before.replaced(Callables()) == ("torch.nn.functional.silu",)


def test_a_constant_of_llmb_counts_too(before: Callables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_optimizer, "LEARNING_RATE", 0.0)
    assert before.replaced(Callables()) == ("llmb.reference.optimizer.LEARNING_RATE",)


@pytest.mark.parametrize(
    ("module", "name"),
    [(reference_optimizer, "len"), (F, "len")],
    ids=["in llmb", "in torch"],
)
def test_a_builtin_hidden_by_a_name_of_the_module_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    monkeypatch.setattr(module, name, other, raising=False)
    assert before.replaced(Callables()) == (f"{module.__name__}.{name}",)


def test_a_function_that_is_gone_is_named(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(F, "linear")
    assert before.replaced(Callables()) == ("torch.nn.functional.linear",)


def test_what_a_vendor_adds_to_torch_replaces_nothing(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "acme_fast", other, raising=False)
    monkeypatch.setattr(Tensor, "acme", other, raising=False)
    monkeypatch.setattr(reference_optimizer, "__compiled_fn_1", other, raising=False)
    assert before.replaced(Callables()) == ()


def test_a_module_that_was_not_there_before_replaces_nothing(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ModuleType("torch.acme")
    late.linear = other  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.acme", late)
    assert before.replaced(Callables()) == ()


def test_below_takes_a_package_by_whole_words() -> None:
    names = ("torch.optim", "torch.optim.adam", "torch.optimistic", "torch")
    assert below(names, "torch.optim") == ("torch.optim", "torch.optim.adam")
