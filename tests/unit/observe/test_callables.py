"""A replaced callable is seen wherever it was put, and what merely is new is not."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.observe import pairs
from llmb.observe.callables import Callables, below, code_of, functions
from llmb.reference import data as reference_data
from llmb.reference import optimizer as reference_optimizer


def other(*arguments: object, **named: object) -> None:
    return None


class Stream:
    """A class of the module that is being run."""

    __slots__ = ("done",)

    def pause(self) -> None: ...


Make = Callable[[pytest.MonkeyPatch], None]
#: What is done to torch, llmb and Python, all at once, for to look takes half a second each time;
#: with the names of what it replaces, or of what is new and replaces nothing.
REPLACING: list[tuple[Make, tuple[str, ...]]] = []
ADDING: list[tuple[Make, tuple[str, ...]]] = []


def replaces(*names: str) -> Callable[[Make], None]:
    return lambda make: REPLACING.append((make, names))


def adds(*names: str) -> Callable[[Make], None]:
    return lambda make: ADDING.append((make, names))


def by_change(changes: list[tuple[Make, tuple[str, ...]]]) -> pytest.MarkDecorator:
    ids = [make.__name__ for make, _ in changes]
    return pytest.mark.parametrize("names", [names for _, names in changes], ids=ids)


@replaces(
    "torch.nn.functional.linear",
    "torch.optim.adamw.AdamW.step",
    "torch.nn.modules.linear.Linear.forward",
    "torch.Tensor.backward",
    "torch.autograd.backward",
    "time.clock_gettime_ns",
    "llmb.reference.optimizer.build_optimizer",
)
def a_function_or_method(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F, "linear", other)
    patch.setattr(torch.optim.AdamW, "step", other)
    patch.setattr(nn.Linear, "forward", other)
    patch.setattr(Tensor, "backward", other)
    patch.setattr(torch.autograd, "backward", other)
    patch.setattr(time, "clock_gettime_ns", other)
    patch.setattr(reference_optimizer, "build_optimizer", other)


@replaces("torch.Tensor.numpy")
def a_method_that_hides_an_inherited_one(patch: pytest.MonkeyPatch) -> None:
    assert "numpy" not in vars(Tensor)
    patch.setattr(Tensor, "numpy", other)


@replaces("torch.nn.functional.cross_entropy")
def other_code_in_the_same_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F.cross_entropy, "__code__", other.__code__)


@replaces("torch.nn.functional.silu")
def other_defaults_of_the_same_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(F.silu, "__defaults__", (True,))


@replaces("llmb.reference.data.MASKED")
def a_constant_of_llmb(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reference_data, "MASKED", 0.01)


@replaces("llmb.observe.pairs._GRID")
def the_contents_of_a_constant_of_llmb(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(pairs._GRID, "float64", 52)


@replaces("llmb.reference.optimizer.len", "torch.nn.functional.len")
def a_builtin_hidden_by_a_name_of_the_module(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reference_optimizer, "len", other, raising=False)
    patch.setattr(F, "len", other, raising=False)


@replaces("torch.nn.functional.bilinear")
def a_function_that_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(F, "bilinear")


@adds("torch.acme_fast", "torch.Tensor.acme", "llmb.reference.optimizer.__compiled_fn_1")
def functions_of_a_vendor_and_of_a_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "acme_fast", other, raising=False)
    patch.setattr(Tensor, "acme", other, raising=False)
    patch.setattr(reference_optimizer, "__compiled_fn_1", other, raising=False)


@adds("torch.acme.linear")
def a_module_that_was_not_there_before(patch: pytest.MonkeyPatch) -> None:
    late = ModuleType("torch.acme")
    late.linear = other  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "torch.acme", late)


@replaces("torch.optim.sgd.SGD.step")
def other_code_within_a_closure(patch: pytest.MonkeyPatch) -> None:
    free = torch.optim.SGD.step
    inner = next(f for f in functions(free) if f is not free and not f.__closure__)
    patch.setattr(inner, "__code__", other.__code__)


@replaces("torch.optim.adagrad.Adagrad.step")
def another_function_within_a_closure(patch: pytest.MonkeyPatch) -> None:
    cells = torch.optim.Adagrad.step.__closure__
    (cell,) = (cell for cell in cells if isinstance(cell.cell_contents, FunctionType))
    patch.setattr(cell, "cell_contents", other)


@replaces("torch.nn.functional.relu6")
def another_default_of_a_keyword(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(F.relu6.__kwdefaults__, "inplace", True)


@replaces("torch.nn.init")
def a_module_in_the_list_of_modules(patch: pytest.MonkeyPatch) -> None:
    lookalike = ModuleType("torch.nn.init")
    vars(lookalike).update(vars(nn.init))
    patch.setitem(sys.modules, "torch.nn.init", lookalike)


@replaces("torch.nn.parallel")
def a_module_in_its_package(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(nn, "parallel", ModuleType("torch.nn.parallel"))


@replaces("torch._ops.ops.aten.mm._op")
def an_operator_object_that_calls_something_else(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.ops.aten.mm, "_op", other)


@replaces("torch.backends.mkldnn.is_available")
def a_name_that_a_module_of_backends_only_passes_on(patch: pytest.MonkeyPatch) -> None:
    assert "is_available" not in vars(torch.backends.mkldnn)
    patch.setattr(torch.backends.mkldnn, "is_available", other, raising=False)


@replaces(
    "llmb.processes.worker.Stream.done",
    "llmb.processes.worker.Stream.pause",
    "llmb.processes.worker.fence",
)
def parts_of_the_module_that_is_being_run_by_its_own_name(patch: pytest.MonkeyPatch) -> None:
    running = sys.modules["__main__"]
    patch.setattr(running, "fence", functools.partial(other))
    patch.setattr(Stream, "pause", other)
    patch.setattr(Stream, "done", property(other))


@adds("builtins.acme")
def a_name_that_is_new_among_the_builtins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("builtins.acme", other, raising=False)


@pytest.fixture(scope="module")
def before() -> Iterator[Callables]:
    for kind in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        kind([nn.Parameter(torch.zeros(1))])  # the first of each makes torch wrap its step
    running = ModuleType("__main__")
    running.__spec__ = ModuleSpec("llmb.processes.worker", None)
    running.fence, running.Stream = other, Stream  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F.relu6, "__kwdefaults__", {"inplace": False})
        patch.setattr(Stream, "__module__", "__main__")
        patch.setitem(sys.modules, "__main__", running)
        patch.setitem(sys.modules, "llmb.processes.worker", ModuleType("llmb.processes.worker"))
        yield Callables()


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "with the earlier one"])
def compared(
    before: Callables, request: pytest.FixtureRequest
) -> tuple[Callables, tuple[str, ...]]:
    with pytest.MonkeyPatch.context() as patch:
        for make, _ in (*REPLACING, *ADDING):
            make(patch)
        after = Callables(before if request.param else None)
        return after, before.replaced(after)


@pytest.fixture
def after(compared: tuple[Callables, tuple[str, ...]]) -> Callables:
    return compared[0]


@pytest.fixture
def replaced(compared: tuple[Callables, tuple[str, ...]]) -> tuple[str, ...]:
    return compared[1]


def test_nothing_has_changed_where_nothing_was_done(before: Callables) -> None:
    assert before.replaced(Callables()) == ()


@by_change(REPLACING)
def test_what_is_replaced_is_named(replaced: tuple[str, ...], names: tuple[str, ...]) -> None:
    assert {*names} <= {*replaced}


def test_nothing_else_is_named(replaced: tuple[str, ...]) -> None:
    assert replaced == tuple(sorted(name for _, names in REPLACING for name in names))


@by_change(ADDING)
def test_what_is_new_is_seen_and_replaces_nothing(
    after: Callables, replaced: tuple[str, ...], names: tuple[str, ...]
) -> None:
    assert all(after.value(name) is other for name in names)
    assert not {*names} & {*replaced}


def test_a_class_with_another_base_is_a_replacement(before: Callables) -> None:
    class Between(torch.optim.Adam):
        pass

    bases = torch.optim.AdamW.__bases__
    torch.optim.AdamW.__bases__ = (Between,)
    try:
        assert before.replaced(Callables()) == ("torch.optim.adamw.AdamW.__bases__",)
    finally:
        torch.optim.AdamW.__bases__ = bases


def test_a_snapshot_that_goes_on_has_what_came_since_too(monkeypatch: pytest.MonkeyPatch) -> None:
    since = ModuleType("torch.acme_since")
    since.relu = F.relu  # type: ignore[attr-defined]
    before = Callables()
    monkeypatch.setitem(sys.modules, since.__name__, since)
    before.go_on()
    monkeypatch.setattr(since, "relu", other)
    monkeypatch.setattr(F, "elu", other)
    found = before.replaced(Callables(before))
    assert found == ("torch.acme_since.relu", "torch.nn.functional.elu")


def test_functions_looks_through_whatever_wraps_a_function() -> None:
    @functools.lru_cache
    def cached() -> None:
        inner()

    def inner() -> None: ...

    bound = functools.partial(property(cached).fget)
    assert list(functions(bound)) == [cached.__wrapped__, inner]
    assert code_of(bound) is cached.__wrapped__.__code__
    assert code_of(len) is None


def test_below_takes_a_package_by_whole_words() -> None:
    names = ("torch.optim", "torch.optim.adam", "torch.optimistic", "torch")
    assert below(names, "torch.optim") == ("torch.optim", "torch.optim.adam")
