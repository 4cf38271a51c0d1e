"""Everything that a step is made of is of torch's own type, or is told with whose it is."""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.distributed.tensor.parallel.loss import customized_loss_ops
from torch.optim import AdamW

from llmb.observe import exactness, namespace
from llmb.observe.exactness import Exactness, owner_of
from llmb.observe.origins import Origins
from llmb.observe.plain_tensors import _wrapped
from llmb.records.evidence import Stranger
from tests.unit.builders_runtime import install


class Lazy(Tensor):
    """Could compute what is read of it, and nothing else."""


class TelltaleParameter(nn.Parameter):
    """Could say when it is looked at."""


class TelltaleDict(dict[Any, Any]):
    """Could say when it is looked at."""


class TelltaleDefaultDict(defaultdict[Any, Any]):
    """Could say when it is looked at."""


class TelltaleFloat(float):
    """Could say when another value is put in its place."""


class TelltaleList(list[Any]):
    """Could say when it is looked at."""


class Mode(torch.overrides.TorchFunctionMode):
    """Could change whatever torch is asked for."""


def nowhere(*_: object) -> bool:
    return False


class Step:
    """One step of AdamW over two parameters, with ``Exactness`` beside it."""

    def __init__(self) -> None:
        namespace.settle()
        self.exactness = Exactness()
        self.parameters = [nn.Parameter(torch.ones(4)) for _ in range(2)]
        self.optimizer = AdamW(self.parameters)
        self.exactness.watch(self.optimizer)
        self.loss = sum(p.square().sum() for p in self.parameters)
        self.loss.backward()
        self.optimizer.step()

    def found(self) -> list[Stranger]:
        self.exactness.look(3, self.loss.detach())
        return list(self.exactness.strangers("tests", "llmb-tests", nowhere))


@pytest.fixture
def step() -> Step:
    return Step()


def test_functions_that_loss_parallel_adds_to_dtensor_are_torchs_own_and_others_are_told() -> None:
    shards = exactness._Shards()
    with loss_parallel():
        assert list(shards.strange()) == []
        operator = next(iter(customized_loss_ops))
        shards._handlers[operator] = nowhere
        assert list(shards.strange()) == [nowhere]


def lazy_gradient(step: Step) -> None:
    step.parameters[0].grad = torch.ones(4).as_subclass(Lazy)


def lazy_loss(step: Step) -> None:
    step.loss = step.loss.detach().as_subclass(Lazy)


def telltale_state(step: Step) -> None:
    step.optimizer.state = TelltaleDefaultDict(dict, step.optimizer.state)


def telltale_values(step: Step) -> None:
    first = step.parameters[0]
    step.optimizer.state[first] = TelltaleDict(step.optimizer.state[first])


def lazy_moment(step: Step) -> None:
    values = step.optimizer.state[step.parameters[0]]
    values["exp_avg"] = values["exp_avg"].as_subclass(Lazy)


def wrapped_gradient(step: Step) -> None:
    step.parameters[0].grad = _wrapped(torch.ones(4))


def wrapped_loss(step: Step) -> None:
    step.loss = torch._to_functional_tensor(step.loss.detach())


def wrapped_moment(step: Step) -> None:
    values = step.optimizer.state[step.parameters[0]]
    values["exp_avg"] = _wrapped(values["exp_avg"])


def telltale_groups(step: Step) -> None:
    step.optimizer.param_groups = TelltaleList(step.optimizer.param_groups)


def telltale_group(step: Step) -> None:
    step.optimizer.param_groups[0] = TelltaleDict(step.optimizer.param_groups[0])


def telltale_list(step: Step) -> None:
    group = step.optimizer.param_groups[0]
    group["params"] = TelltaleList(group["params"])


def telltale_rate(step: Step) -> None:
    step.optimizer.param_groups[0]["lr"] = TelltaleFloat(1e-3)


class TelltaleKey:
    """A key that would be compared with a parameter, and would learn when."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.hash = hash(parameter)

    def __hash__(self) -> int:
        return self.hash


def telltale_key(step: Step) -> None:
    own = step.optimizer
    own.state[TelltaleKey(own.param_groups[0]["params"][0])] = {}


class TelltaleName:
    """A key with the hash of ``lr``: a dict asks the key whether it equals ``lr``."""

    def __hash__(self) -> int:
        return hash("lr")


def telltale_name(step: Step) -> None:
    group = step.optimizer.param_groups[0]
    step.optimizer.param_groups[0] = {TelltaleName(): 0, **group}


def telltale_name_of_state(step: Step) -> None:
    step.optimizer.state[step.parameters[0]][TelltaleName()] = torch.ones(4)  # type: ignore[index]


def telltale_name_of_optimizer(step: Step) -> None:
    vars(step.optimizer)[TelltaleName()] = 0  # type: ignore[index]


def own_read(step: Step) -> None:
    gradient = step.parameters[0].grad
    assert gradient is not None
    gradient.as_strided = lambda *_: torch.ones(2)  # type: ignore[method-assign]


def telltale_name_of_gradient(step: Step) -> None:
    vars(step.parameters[0].grad)[TelltaleName()] = 0  # type: ignore[index]


def own_logits(step: Step) -> None:
    step.loss = step.loss.detach()
    step.loss.detach = lambda: step.loss  # type: ignore[method-assign]


def telltale_hooks(step: Step) -> None:
    step.optimizer._optimizer_step_pre_hooks = TelltaleHooks()


class TelltaleHooks(OrderedDict[Any, Any]):
    """Could say when it is looked at."""


def fewer_parameters(step: Step) -> None:
    step.optimizer.param_groups[0]["params"].pop()


def own_step(step: Step) -> None:
    step.optimizer.step = lambda: None


def optimizer_hook(step: Step) -> None:
    step.optimizer.register_step_pre_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lazy_gradient, "gradient"),
        (lazy_loss, "result of the model"),
        (telltale_state, "state of the optimizer"),
        (telltale_values, "state of a parameter"),
        (lazy_moment, "moment of a parameter"),
        (wrapped_gradient, "wrapped gradient"),
        (wrapped_loss, "wrapped result of the model"),
        (wrapped_moment, "wrapped moment of a parameter"),
        (telltale_key, "key of the optimizer's state"),
        (telltale_groups, "list of parameter groups"),
        (telltale_group, "parameter group"),
        (telltale_list, "list of parameters"),
        (telltale_rate, "learning rate"),
        (fewer_parameters, "list of parameters that was exchanged"),
        (own_step, "step of the optimizer"),
        (optimizer_hook, "hook of the optimizer"),
        (telltale_hooks, "table of the optimizer's hooks"),
        (telltale_name, "key of the parameter group"),
        (telltale_name_of_state, "key of the state of a parameter"),
        (telltale_name_of_optimizer, "key of the optimizer"),
        (telltale_name_of_gradient, "key of the gradient"),
        (own_read, "attribute as_strided of a gradient"),
        (own_logits, "attribute detach of a result of the model"),
    ],
)
def test_a_part_of_another_type_is_told(
    step: Step, change: Callable[[Step], None], what: str
) -> None:
    change(step)
    assert [stranger.what for stranger in step.found()] == [what]


def test_a_thread_with_functions_of_pythons_own_for_operators_is_told(step: Step) -> None:
    guard = torch._C._EnablePythonDispatcher()
    try:
        step.exactness.look(3)
    finally:
        del guard
    (found,) = step.found()
    assert (found.what, found.type, found.origin, found.first_step, found.looks) == (
        *("torch's state of the thread", "DispatchKeySet(PythonDispatcher)", "unknown"),
        *(3, 1),
    )


def test_a_thread_in_inference_mode_or_under_autocast_shows_nothing(step: Step) -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        step.exactness.look(3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        step.exactness.look(4)
    assert step.found() == []


def test_tokens_of_another_type_are_told_beside_logits_of_torchs(step: Step) -> None:
    step.exactness.look(0, torch.ones(4), torch.ones(4).as_subclass(Lazy))
    told = step.exactness.strangers("tests", "llmb-tests", nowhere)
    assert [stranger.what for stranger in told] == ["result of the model"]


def test_a_parameter_of_another_class_is_told() -> None:
    exactness = Exactness()
    exactness.watch(AdamW([TelltaleParameter(torch.ones(4))]))
    exactness.look(0)
    (found,) = exactness.strangers("tests", "llmb-tests", nowhere)
    assert (found.what, found.type) == ("parameter", f"{__name__}.TelltaleParameter")


class _Held:
    __slots__ = ("_call", "_number", "_socket")

    def __init__(self, held: socket.socket) -> None:
        self._call, self._number, self._socket = len, 3, held


def test_an_object_of_llmbs_with_other_parts_is_told() -> None:
    """A plugin that finds the stream could put another channel into the stream."""
    own, other = socket.socketpair()
    with own, other:
        exactness, held = Exactness(), _Held(own)
        exactness.hold(held)
        held._number = 4
        exactness.compare(0)
        assert exactness.strangers("tests", "llmb-tests", nowhere) == ()
        held._call = max
        exactness.compare(1)
        held._call = len
        (found,) = exactness.strangers("tests", "llmb-tests", nowhere)
        assert (found.what, found.first_step) == ("what the pause of a step calls", 1)


def test_another_file_under_the_number_of_a_channels_socket_is_told() -> None:
    own, other = socket.socketpair()
    with own, other:
        exactness = Exactness()
        exactness.hold(_Held(own))
        os.dup2(other.fileno(), own.fileno())
        exactness.compare(2)
        (found,) = exactness.strangers("tests", "llmb-tests", nowhere)
        assert (found.what, found.type) == ("what the pause of a step calls", "socket.socket")


def test_a_step_of_torchs_own_types_shows_nothing(step: Step) -> None:
    assert step.found() == []


def test_what_was_seen_has_its_first_step_and_the_number_of_looks(step: Step) -> None:
    lazy_gradient(step)
    for index in (5, 6, 7):
        step.exactness.look(index)
    (found,) = step.exactness.strangers("tests", "llmb-tests", nowhere)
    assert (found.first_step, found.looks) == (5, 3)


# -- what Python and torch call by themselves -------------------------------------------------


def own_tracer(*arguments: object) -> None:
    """Stand for a tracer, a hook, a callback and a handler."""


@pytest.fixture
def module_hook() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(own_tracer)
    yield
    handle.remove()


@pytest.fixture
def function_mode() -> Iterator[None]:
    with Mode():
        yield


@pytest.fixture
def profiler() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(own_tracer)
    yield
    sys.setprofile(before)


@pytest.fixture
def collector() -> Iterator[None]:
    gc.callbacks.append(own_tracer)
    yield
    gc.callbacks.remove(own_tracer)


@pytest.fixture
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGPROF, own_tracer)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize(
    ("fixture", "what"),
    [
        ("module_hook", "hook of all modules"),
        ("function_mode", "mode of torch"),
        ("profiler", "tracer"),
        ("collector", "callback of the garbage collector"),
        ("handler", "signal handler"),
    ],
)
def test_what_is_called_by_itself_is_told(
    request: pytest.FixtureRequest, fixture: str, what: str
) -> None:
    exactness = Exactness()
    request.getfixturevalue(fixture)
    exactness.look(0)
    found = {stranger.what for stranger in exactness.strangers("tests", "llmb-tests", nowhere)}
    assert found == {what}


def test_what_was_there_before_is_not_told(module_hook: None, collector: None) -> None:
    exactness = Exactness()
    exactness.look(0)
    assert exactness.strangers("tests", "llmb-tests", nowhere) == ()


def test_torchs_default_device_is_no_stranger() -> None:
    exactness = Exactness()
    torch.set_default_device("cpu")
    try:
        exactness.look(0)
    finally:
        torch.set_default_device(None)
    assert exactness.strangers("tests", "llmb-tests", nowhere) == ()


# -- whose it is ------------------------------------------------------------------------------


def origin_of(kind: type) -> str:
    return owner_of(kind, Origins("tests", "llmb-tests")).origin


def origin_of_function(function: object) -> str:
    return owner_of(function, Origins("tests", "llmb-tests")).origin


def test_a_class_of_torch_is_torchs() -> None:
    assert origin_of(torch.masked.MaskedTensor) == "needed"


def test_a_class_that_only_says_it_is_torchs_is_not() -> None:
    assert origin_of(type("MaskedTensor", (Tensor,), {"__module__": "torch.masked"})) == "unknown"


def test_a_class_that_was_put_into_torchs_module_is_known_by_its_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = torch.masked.maskedtensor.core.__file__
    code = compile("def add(self):\n    return 7\n", file, "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    inside = {"__module__": "torch.masked", "add": names["add"]}
    disguised = type("Disguised", (Tensor,), inside)
    monkeypatch.setattr(torch.masked, "Disguised", disguised, raising=False)
    assert origin_of(disguised) == "unknown"


class Acts:
    """An object that stands for a method, and is no function."""

    def __call__(self, *arguments: object, **named: object) -> None: ...


@pytest.mark.parametrize(
    "method",
    [Acts(), functools.partial(Acts()), functools.partialmethod(Acts.__call__), property(Acts())],
)
def test_a_class_is_whose_objects_act_as_its_methods(
    method: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type("Decoder", (Tensor,), {"__module__": "json", "__torch_function__": method})
    monkeypatch.setattr(json, "Decoder", kind, raising=False)
    assert origin_of(kind) == "unknown"


def test_a_class_whose_metaclass_is_a_plugins_is_the_plugins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Meta(type(Tensor)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return True

    kind = Meta("Decoder", (Tensor,), {"__module__": "json"})
    monkeypatch.setattr(json, "Decoder", kind, raising=False)
    assert origin_of(kind) == "unknown"


def test_a_class_with_nothing_of_its_own_is_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Decoder", (Tensor,), {"__module__": "json"})
    monkeypatch.setattr(json, "Decoder", kind, raising=False)
    assert origin_of(kind) == "needed"


def test_a_file_that_torch_was_not_installed_with_is_not_torchs(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = install(site, "networkx", {}, {"acme_llmb.py": "def f(): ...\n"})
    (info / "top_level.txt").write_text("acme_llmb\n")
    (info / "RECORD").write_text("acme_llmb.py,,\n")
    acme = importlib.import_module("acme_llmb")
    assert owner_of(acme.f, Origins("tests", "llmb-tests")).origin == "unknown"
    inside = Path(torch.__file__).with_name("acme.py")
    assert Origins("tests", "llmb-tests").of(torch.__file__).origin == "needed"
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert Origins("tests", "llmb-tests").of(str(inside)).origin == "unknown"


def test_code_of_torch_with_names_of_a_plugins_is_nobodys() -> None:
    """The functions that the code calls are others."""
    real = torch.nn.functional.dropout
    other = FunctionType(real.__code__, {**real.__globals__})
    origins = Origins("tests", "llmb-tests")
    assert owner_of(real, origins).origin == "needed"
    assert owner_of(other, origins).origin == "unknown"


def test_a_class_with_an_abstract_base_is_its_packages(site: Path) -> None:
    """Python keeps the code of ``abc`` and ``importlib.abc`` in its program, not in a file."""
    text = "from importlib.abc import MetaPathFinder\nclass Finder(MetaPathFinder):\n    x = 1\n"
    info = install(site, "acme", {}, {"acme_llmb.py": text})
    (info / "top_level.txt").write_text("acme_llmb\n")
    acme = importlib.import_module("acme_llmb")
    assert owner_of(acme.Finder(), Origins("tests", "llmb-tests")).origin == "other"


@pytest.mark.parametrize("file", ["<frozen abc>", "<frozen nowhere>"])
def test_code_that_only_says_it_is_frozen_is_nobodys(file: str) -> None:
    names = {"__name__": "abc"}
    exec(compile("def f():\n    return 2", file, "exec"), names)
    assert origin_of_function(names["f"]) == "unknown"
    own = FunctionType(names["f"].__code__, vars(sys.modules["abc"]))
    assert origin_of_function(own) == "unknown"


def test_a_function_with_a_constant_that_is_no_number_is_its_files(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = install(site, "acme", {}, {"acme_llmb.py": "def f():\n    return 1e999 * 0\n"})
    (info / "top_level.txt").write_text("acme_llmb\n")
    acme = importlib.import_module("acme_llmb")
    assert owner_of(acme.f, Origins("tests", "llmb-tests")).origin == "other"
