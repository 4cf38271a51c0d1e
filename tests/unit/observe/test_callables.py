"""A replaced callable is seen wherever it was put, and what merely is new is not."""

from __future__ import annotations

import functools
import sys
import time
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe.callables import Callables, below, file_of, functions
from llmb.reference import data as reference_data
from llmb.reference import optimizer as reference_optimizer


@pytest.fixture(scope="module", autouse=True)
def torch_wrapped() -> None:
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])  # the first makes torch wrap its own step


@pytest.fixture(scope="module")
def before(torch_wrapped: None) -> Callables:
    return Callables()


def other(*arguments: object, **named: object) -> None:
    return None


class Stream:
    """A class of the module that is being run."""

    __slots__ = ("done",)

    def pause(self) -> None: ...


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
        (reference_optimizer, "build_optimizer", "llmb.reference.optimizer.build_optimizer"),
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
    monkeypatch.setattr(reference_data, "MASKED", 0.01)
    assert before.replaced(Callables()) == ("llmb.reference.data.MASKED",)


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


def test_other_code_within_a_closure_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = torch.optim.AdamW.step
    inner = next(f for f in functions(free) if f is not free and not f.__closure__)
    monkeypatch.setattr(inner, "__code__", other.__code__)
    assert "torch.optim.adamw.AdamW.step" in before.replaced(Callables())


def test_another_function_within_a_closure_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = torch.optim.AdamW.step.__closure__
    (cell,) = (cell for cell in cells if isinstance(cell.cell_contents, FunctionType))
    monkeypatch.setattr(cell, "cell_contents", other)
    assert "torch.optim.adamw.AdamW.step" in before.replaced(Callables())


def test_another_default_of_a_keyword_is_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F.silu, "__kwdefaults__", {"inplace": False})
    before = Callables()
    F.silu.__kwdefaults__["inplace"] = True
    assert before.replaced(Callables()) == ("torch.nn.functional.silu",)


def test_a_class_with_another_base_is_a_replacement(before: Callables) -> None:
    class Between(torch.optim.Adam):
        pass

    bases = torch.optim.AdamW.__bases__
    torch.optim.AdamW.__bases__ = (Between,)
    try:
        assert before.replaced(Callables()) == ("torch.optim.adamw.AdamW.__bases__",)
    finally:
        torch.optim.AdamW.__bases__ = bases


def test_a_module_replaced_in_the_list_of_modules_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookalike = ModuleType("torch.nn.functional")
    vars(lookalike).update(vars(F))
    monkeypatch.setitem(sys.modules, "torch.nn.functional", lookalike)
    assert before.replaced(Callables()) == ("torch.nn.functional",)


def test_a_module_replaced_in_its_package_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn, "functional", ModuleType("torch.nn.functional"))
    assert before.replaced(Callables()) == ("torch.nn.functional",)


def test_an_operator_object_that_calls_something_else_is_a_replacement(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.aten.mm, "_op", other)
    (name,) = before.replaced(Callables())
    assert name.endswith("ops.aten.mm._op")


def test_a_name_that_a_module_of_backends_only_passes_on_can_be_replaced(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is_available" not in vars(torch.backends.mkldnn)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", other, raising=False)
    assert before.replaced(Callables()) == ("torch.backends.mkldnn.is_available",)


def test_the_module_that_is_being_run_goes_by_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = ModuleType("__main__")
    running.__spec__ = ModuleSpec("llmb.worker", None)
    running.fence, running.Stream = other, Stream  # type: ignore[attr-defined]
    monkeypatch.setattr(Stream, "__module__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", running)
    monkeypatch.setitem(sys.modules, "llmb.worker", ModuleType("llmb.worker"))
    before = Callables()
    running.fence = functools.partial(other)  # type: ignore[attr-defined]
    monkeypatch.setattr(Stream, "pause", other)
    monkeypatch.setattr(Stream, "done", property(other))
    replaced = before.replaced(Callables())
    assert replaced == ("llmb.worker.Stream.done", "llmb.worker.Stream.pause", "llmb.worker.fence")


def test_a_name_that_is_new_among_the_builtins_replaces_nothing(
    before: Callables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.acme", other, raising=False)
    assert before.replaced(Callables()) == ()


def test_functions_looks_through_whatever_wraps_a_function() -> None:
    @functools.lru_cache
    def cached() -> None:
        inner()

    def inner() -> None: ...

    bound = functools.partial(property(cached).fget)
    assert list(functions(bound)) == [cached.__wrapped__, inner]
    assert file_of(bound) == __file__
    assert file_of(len) is None


def test_below_takes_a_package_by_whole_words() -> None:
    names = ("torch.optim", "torch.optim.adam", "torch.optimistic", "torch")
    assert below(names, "torch.optim") == ("torch.optim", "torch.optim.adam")
