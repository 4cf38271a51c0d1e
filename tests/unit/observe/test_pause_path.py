"""What the pause of a step calls is compared in every pause, not only after the stream."""

from __future__ import annotations

import builtins
import contextlib
import gc
import hashlib
import random
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from llmb.config import Frozen
from llmb.observe import exactness, pause_path
from llmb.observe.canonical import Canonical
from llmb.observe.exactness import Exactness
from llmb.observe.gradient_ledger import GradientLedger
from llmb.observe.namespace import NamespaceWatch
from llmb.observe.origins import CodeOrigin
from llmb.observe.output_ledger import OutputLedger
from llmb.observe.pause_path import comparison
from llmb.observe.step_sampler import StepSampler
from llmb.processes import step_stream
from llmb.processes.step_stream import StepStream
from llmb.reference.optimizer import build_optimizer
from llmb.reference.train_loop import Step
from llmb.wire import messages
from llmb.wire.channel import Channel
from llmb.wire.messages import KeepWeights, Paused, Sampled, StepDraw


def other(*_: object) -> None:
    return None


def nowhere(*_: object) -> bool:
    return False


def test_nothing_is_found_where_nothing_was_replaced() -> None:
    assert not comparison()()


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (Channel, "receive"),
        (StepStream, "pause"),
        (hashlib, "sha256"),
        (gc, "disable"),
        (select, "select"),
        (sys, "gettrace"),
        (time, "clock_gettime_ns"),
        (torch._C, "_set_grad_enabled"),
        (torch.overrides, "_len_torch_function_stack"),
        (socket.socket, "sendall"),
        (messages, "decode"),
        (messages._ADAPTER, "validator"),
        (Paused, "__pydantic_serializer__"),
        (torch.no_grad, "__enter__"),
        (torch.no_grad, "__init__"),
        (torch, "arange"),
        (torch.Tensor, "__hash__"),
        (contextlib._GeneratorContextManager, "__exit__"),
        (random.Random, "sample"),
        (TypeAdapter, "validate_json"),
        (Canonical, "value"),
    ],
)
def test_a_replacement_is_found_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str
) -> None:
    changed = comparison((step_stream,))
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, other)
        assert [(value, code) for _, value, code in changed()] == [(other, other.__code__)]
    assert not changed()


def test_another_module_under_the_name_of_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, another = comparison(), ModuleType("hashlib")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "hashlib", another)
        assert changed() == [("sys.modules.hashlib", another, None)]
    assert not changed()


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (type(Paused), "__instancecheck__"),  # a metaclass, which `isinstance` asks
        (Frozen, "__getattribute__"),  # a base of all messages
        (random.Random, "__del__"),  # hides nothing
    ],
)
def test_a_new_method_that_python_calls_by_itself_is_found(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str
) -> None:
    changed = comparison((step_stream,))
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, lambda *_: True, raising=False)
        found = [full for full, _, _ in changed()]
    assert [full.rpartition(".")[2] for full in found] == [name]


def test_names_that_torch_compile_puts_into_a_module_are_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = comparison((step_stream,))
    monkeypatch.setattr(step_stream, "__compiled_fn_1_a0", other, raising=False)
    assert not changed()


def test_other_code_in_the_same_function_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = comparison()
    monkeypatch.setattr(Channel.receive, "__code__", other.__code__)
    assert len(changed()) == 1


@pytest.mark.parametrize("part", ["__defaults__", "__kwdefaults__"])
def test_other_defaults_of_a_function_are_found(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    changed = comparison()
    monkeypatch.setattr(Channel.receive, part, (0,) if part == "__defaults__" else {"timeout_s": 0})
    assert [name.rpartition(".")[2] for name, *_ in changed()] == ["receive"]


def test_another_function_inside_a_context_manager_is_found() -> None:
    """``contextmanager`` keeps the generator function of llmb in the cell of a closure."""
    changed = comparison((step_stream,))
    (cell,) = step_stream.without_finalizers.__closure__ or ()
    inner, cell.cell_contents = cell.cell_contents, other
    try:
        (found,) = changed()
    finally:
        cell.cell_contents = inner
    assert found[:2] == ("llmb.processes.step_stream.without_finalizers", other)
    assert not changed()


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        (Exactness, "look"),
        (Exactness, "_note"),
        (Exactness, "_comparing"),
        (StepStream, "pause"),
        (pause_path, "comparison"),
        (pause_path, "_rooms"),
        (exactness, "comparison"),
        (builtins, "map"),
        (builtins, "getattr"),
    ],
)
def test_a_plugin_that_replaces_the_comparison_for_a_while_is_found(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str
) -> None:
    eyes = Exactness((step_stream,))
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "receive", other)
        patch.setattr(holder, name, other)
        eyes.compare(3)
    found = eyes.strangers("acme", "acme", nowhere)
    assert {one.what for one in found} == {"what the pause of a step calls"}
    assert [one.first_step for one in found] == [3]


def of_a_library(self: torch.Tensor, **_: object) -> Any:
    return torch._C.TensorBase.numpy(self)


@pytest.fixture
def from_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    place = CodeOrigin("library", "ipex", "ipex/tensor.py")
    monkeypatch.setattr(exactness, "owner_of", lambda *_: place)


def strange(watch: NamespaceWatch, eyes: Exactness) -> list[str]:
    return [one.type for one in eyes.strangers("acme", "acme", watch.stands)]


@pytest.mark.usefixtures("from_a_library")
def test_a_replacement_that_stands_at_the_end_is_left_to_the_comparison_of_all_callables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The import of IPEX replaces ``torch.Tensor.numpy``."""
    watch, eyes = NamespaceWatch(), Exactness()
    monkeypatch.setattr(torch.Tensor, "numpy", of_a_library, raising=False)
    eyes.compare(0)
    watch.close()
    assert strange(watch, eyes) == []
    replaced = watch.evidence("acme", "acme").replaced
    assert "torch.Tensor.numpy" in [one.name for one in replaced]


def test_a_replacement_of_the_plugins_own_is_found_though_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plugin may declare ``torch.cat``; llmb reads gradients with the function."""
    watch, eyes = NamespaceWatch(), Exactness()
    monkeypatch.setattr(torch, "cat", other)
    eyes.compare(0)
    watch.close()
    assert len(strange(watch, eyes)) == 1


@pytest.mark.usefixtures("from_a_library")
@pytest.mark.parametrize("part", ["value", "code"])
def test_what_was_there_for_a_while_is_found_beside_a_replacement_that_stands(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    watch, eyes = NamespaceWatch(), Exactness()
    monkeypatch.setattr(torch.Tensor, "numpy", of_a_library, raising=False)
    with monkeypatch.context() as patch:
        if part == "value":
            patch.setattr(torch.Tensor, "numpy", other)
        else:
            patch.setattr(of_a_library, "__code__", other.__code__)
        eyes.compare(3)
    watch.close()
    assert len(strange(watch, eyes)) == 1


class Calls:
    """Notes the modules and names of all Python functions called, other than those of tests."""

    def __init__(self) -> None:
        self.modules = dict[str, str]()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = frame.f_globals["__name__"]
        if event == "call" and not module.startswith("tests."):
            self.modules[module] = frame.f_code.co_qualname


class Operators(TorchDispatchMode):
    """Notes the operators of torch that run, such as ``view.dtype``."""

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def pause() -> Iterator[Callable[[], None]]:
    """Return a function that does all that llmb does before a judged step has left the process."""
    model, step = nn.Linear(30, 20), Step(3, 5, fence=False)
    optimizer = build_optimizer(model.parameters())
    sampler, ledger = StepSampler(model, optimizer), GradientLedger(model, optimizer)
    supervisor, worker = map(Channel, socket.socketpair())
    for number in range(3):
        model(torch.ones(2, 30)).sum().backward()
        if number == 1:
            sampler.before(step, 8)
        optimizer.step()
        sampler.after()
    supervisor.send(StepDraw(places=6, rate=1e-4))
    supervisor.send(KeepWeights(seed=7))

    def paused() -> None:
        sampler.glance()
        sampler.next()
        ledger.commitment()
        worker.send(Paused(index=3, commitment=""))
        worker.receive()
        ledger.take(6, 1e-4)
        worker.send(Sampled(index=3, commitment=ledger.committed_at_once()))
        worker.receive()
        ledger.commitment()
        sampler.show(step, 7)

    yield paused
    supervisor.close()
    worker.close()


def test_each_function_that_a_pause_calls_is_compared(pause: Callable[[], None]) -> None:
    calls = Calls()
    sys.setprofile(calls)
    try:
        pause()
    finally:
        sys.setprofile(None)
    own = [import_module(name) for name in pause_path._MODULES]
    compared = {room.name for room in pause_path._rooms(own, ranks=False)}
    assert "llmb.observe.step_sampler" in calls.modules
    assert {m: n for m, n in calls.modules.items() if m not in compared} == {}


def assert_compared(read: Callable[[], object], one: str) -> None:
    """The kernels of all operators that ``read`` calls are compared, ``one`` of them among these.

    The profiler also hears operators that are made of others, such as ``to``, by name alone.
    """
    with torch.no_grad(), Operators() as operators:
        read()
    assert one in operators.names
    assert not operators.names - {*pause_path._KERNELS}
    with torch.no_grad(), torch.profiler.profile() as seen:
        read()
    heard = {event.name.removeprefix("aten::") for event in seen.events() if "::" in event.name}
    assert one.partition(".")[0] in heard
    assert not heard - {name.partition(".")[0] for name in pause_path._KERNELS}


def test_the_kernels_of_each_operator_that_a_pause_calls_are_compared(
    pause: Callable[[], None],
) -> None:
    with Operators() as operators:
        pause()
    assert "as_strided" in operators.names
    assert not operators.names - {*pause_path._KERNELS}


@pytest.mark.parametrize("settle", [None, lambda: None], ids=["eager", "recording"])
def test_the_kernels_that_read_a_transposed_gradient_are_compared(
    settle: Callable[[], None] | None,
) -> None:
    model = nn.Linear(30, 20).bfloat16()
    model.weight = nn.Parameter(model.weight.detach().t().contiguous().t())
    optimizer = build_optimizer(model.parameters())
    model(torch.ones(2, 30).bfloat16()).sum().backward()
    model.weight.grad = torch.ones(30, 20).bfloat16().t()
    optimizer.step()

    ledger = GradientLedger(model, optimizer, settle=settle)

    def read() -> None:
        for _ in range(2):
            ledger.take(6, 1e-4)
            ledger.committed_at_once()
            ledger.commitment()

    assert_compared(read, "index.Tensor")


@pytest.mark.parametrize("samples", [False, True], ids=["forward", "generate"])
def test_the_kernels_that_read_logits_are_compared(*, samples: bool) -> None:
    seen = SimpleNamespace(
        logits=torch.randn(3, 5, 100).bfloat16(),
        tokens=torch.zeros(3, 5, dtype=torch.int64) if samples else None,
        noise=2**40 + 7 if samples else None,
    )
    ledger = OutputLedger(cast("Any", SimpleNamespace(output=seen)))

    def read() -> None:
        ledger.take(6, 0.0)
        ledger.committed_at_once()
        ledger.commitment()

    assert_compared(read, "randint.generator")


def kernel_of_a_plugin(*_: object) -> None:
    raise AssertionError("never called")


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_kernel_that_is_taken_back_before_the_end_is_found_and_one_that_stands_is_not() -> None:
    eyes = Exactness()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("as_strided", kernel_of_a_plugin, "QuantizedCPU")
        for _ in range(60):  # a third of the operators is compared in each pause
            eyes.compare(2)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("cat", kernel_of_a_plugin, "QuantizedCPU")
        for _ in range(60):
            eyes.compare(3)
        eyes.close()
    (found,) = eyes.strangers("acme", "acme", nowhere)
    assert (found.type, found.origin) == ("kernel of aten::as_strided", "unknown")
    assert found.first_step == 2
    assert 1 <= found.looks <= 60


def test_methods_of_a_module_that_no_plugin_has_loaded_yet_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = comparison(ranks=True)
    monkeypatch.setattr(GradientLedger, "take", other)
    monkeypatch.setattr(DTensor, "to_local", other)
    assert {name.rpartition(".")[2] for name, *_ in changed()} == {"take", "to_local"}
