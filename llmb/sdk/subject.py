"""The plugin under check: goes once through the phases of a run, observed after each phase.

Lives in the checker process only, because this process holds the vendor's code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor, nn

from llmb import workloads
from llmb.config import AUTO_DEVICE, OFFICIAL_TIMED_STEPS, Mode, RunConfig, environment
from llmb.errors import LlmbError
from llmb.observe import settings
from llmb.observe.callables import Callables
from llmb.observe.first_model import float32_by_default
from llmb.observe.optimizer import OptimizerBaseline
from llmb.plugin.backend import Backend
from llmb.plugin.faults import PluginFaultError
from llmb.plugin.manager import Plugin
from llmb.plugin.optimizer import optimizer_of
from llmb.plugin.options import resolve
from llmb.reference.data import Batch, random_tokens
from llmb.reference.models import build
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import Shape
from llmb.reference.train_loop import Step, train_loop
from llmb.sdk.report import SkipError
from llmb.wire.messages import CheckOrder

T = TypeVar("T")
A = TypeVar("A")
_SEED = 20_261_121  # any number: model and tokens of a check may be predictable
_STEPS = 3


class Station(Generic[T]):
    """A value that is made once; after a failure every later access raises ``SkipError``."""

    def __init__(self, make: Callable[[Subject], T]) -> None:
        """Make the value with ``make`` on first use."""
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, subject: None, owner: type) -> Station[T]: ...
    @overload
    def __get__(self, subject: Subject, owner: type) -> T: ...
    def __get__(self, subject: Subject | None, owner: type) -> Station[T] | T:
        if subject is None:
            return self
        if self._name in subject.failed:
            raise SkipError(subject.failed[self._name])
        if self._name not in subject.made:
            try:
                subject.made[self._name] = self._make(subject)
            except SkipError as reason:
                subject.failed[self._name] = str(reason)
                raise
            except Exception as error:
                first_line = (str(error).splitlines() or [type(error).__name__])[0]
                subject.failed[self._name] = f"not possible after what failed above: {first_line}"
                raise
        value: T = subject.made[self._name]
        return value


@dataclass(frozen=True)
class Change:
    """A setting or variable with a new value; None stands for a missing setting or variable."""

    name: str
    before: str | None
    after: str | None

    def __str__(self) -> str:
        return f"{self.name} was {self.before!r} and became {self.after!r}"


class Watch:
    """Compares settings and environment between stations."""

    def __init__(self) -> None:
        """Record the present settings and environment."""
        self._settings, self._variables = _settings(), environment()
        self.settings: dict[str, list[Change]] = defaultdict(list)
        self.variables: dict[str, list[Change]] = defaultdict(list)

    def mark(self, station: str) -> None:
        """Attribute the changes since the last mark to ``station``."""
        now, variables = _settings(), environment()
        self.settings[station] += [
            Change(name, before, now.get(name))
            for name, before in self._settings.items()
            if now.get(name) != before  # settings of later imports are new, and not compared
        ]
        self.variables[station] += [
            Change(name, self._variables.get(name), variables.get(name))
            for name in sorted({*self._variables, *variables})
            if self._variables.get(name) != variables.get(name) and not _of_compiler(name)
        ]
        self._settings, self._variables = now, variables


def _of_compiler(name: str) -> bool:
    """Tell whether torch's compiler itself sets variable ``name`` (its tools and folders)."""
    tools = ("TRITON_PTXAS_PATH", "TRITON_LIBDEVICE_PATH")
    return name.endswith("_CACHE_DIR") or name.startswith("_TORCHINDUCTOR_") or name in tools


def _settings() -> dict[str, str]:
    found = settings.snapshot()
    return {name: value for name, value in found.items() if not name.startswith("environment.")}


@dataclass(frozen=True)
class Processed:
    """The model after post-processing, and its values before."""

    model: nn.Module
    #: Canonical name -> value on the CPU.
    pristine: dict[str, Tensor]
    shape: Shape


class Subject:
    """The plugin as the checks see it. Each station takes the plugin one step further."""

    def __init__(self, order: CheckOrder) -> None:
        """Take the baselines before any import of plugin code."""
        self.order = order
        self.made: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        _let_torch_wrap_itself()
        self.optimizer_baseline = OptimizerBaseline()
        self.tokens = self.batch(0)
        self.callables = Callables()
        self.watch = Watch()

    @Station
    def plugin(self) -> Plugin:
        """Import the plugin."""
        plugin = Plugin(self.order.plugin)
        self.watch.mark("importing")
        return plugin

    @Station
    def config(self) -> RunConfig:
        """Resolve the options, and call the hooks that need no device."""
        plugin, order = self.plugin, self.order
        request = order.request
        config = RunConfig(
            workload=request.workload,
            mode=request.mode or Mode.TRAIN,
            plugin=order.plugin,
            plugin_options=resolve(order.plugin, plugin.options(), request.plugin_options),
            device=order.device or request.device or AUTO_DEVICE,
            precision=order.precision,
            batch_size=2,
            seed=_SEED,
            warmup_steps=1,
            timed_steps=request.timed_steps or OFFICIAL_TIMED_STEPS,
            repeats=1,
            shape_overrides=request.shape_overrides,
        )
        for ask in (plugin.patches, plugin.helpers, plugin.native_libraries):
            _ask(ask)
        self.watch.mark("answering")
        return config

    @Station
    def backend(self) -> Backend:
        """Make the backend, and call the hooks that need a backend."""
        plugin, config = self.plugin, self.config
        try:
            backend = plugin.backend(config)
        except PluginFaultError:
            raise
        except LlmbError as error:
            if self.order.device is None:
                raise SkipError(f"no device here: {error}") from error
            raise
        if self.order.reason is not None or not backend.is_available():
            raise SkipError(f"no device here: {self.order.reason or 'it is not available'}")
        if config.device == AUTO_DEVICE:  # the offer process failed before settling the device
            config = config.model_copy(update={"device": backend.device_type})
            self.made["config"] = config
        self.watch.mark("making the backend")
        for hook in (
            plugin.environment_variables,
            plugin.precisions,
            plugin.warmup_steps,
            plugin.describe_system,
            plugin.optimizer_options,
        ):
            _ask(lambda hook=hook: hook(config))  # type: ignore[misc]
        _ask(lambda: plugin.telemetry(backend))
        self.watch.mark("answering")
        return backend

    @Station
    def device(self) -> Backend:
        """Let the plugin set up its environment: permitted point 1."""
        backend = self.backend
        self.plugin.set_environment(self.config)
        self.watch.mark("setting the environment")
        return backend

    @Station
    def processed(self) -> Processed:
        """Make the model and let the plugin post-process it: permitted point 2."""
        config, _ = self.config, self.device
        shape = self._shape()
        dtype = getattr(torch, config.precision.stored_dtype)
        with float32_by_default():
            model: nn.Module = build(shape, config.seed, dtype, config.device)
        pristine = {
            name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()
        }
        self.watch.mark("making the model")
        model = self.plugin.post_process_model(model, config)
        self.watch.mark("post-processing")
        return Processed(model, pristine, shape)

    @Station
    def trained(self) -> dict[str, Any]:
        """Train a few steps as the worker does; return the observations."""
        model, config, backend, plugin = self.processed.model, self.config, self.device, self.plugin
        self.watch.mark("checking")
        before = [p.detach().cpu().clone() for p in model.parameters()]
        optimizer = optimizer_of(model.parameters(), OFFICIAL_OPTIMIZER, plugin, config)
        steps = [Step(index, index, fence=True) for index in range(_STEPS)]
        seen: dict[str, Any] = {"losses": []}

        def batches(seed: int) -> tuple[Batch]:
            backend.step_begin()
            ids = self.batch(seed).to(config.device, non_blocking=True)
            return (Batch(ids, ids),)

        for done in train_loop(model, optimizer, steps, batches):
            if done.step.index == 0:
                seen["program"] = _answer(plugin.program, [done.loss, *model.parameters()])
            backend.step_end()
            backend.synchronize()
            seen["losses"].append(done.loss.float().cpu().item())
        moved = (
            not torch.equal(old, p.detach().cpu())
            for old, p in zip(before, model.parameters(), strict=True)
        )
        seen["moved"] = sum(moved)
        seen["optimizer"] = self.optimizer_baseline.observe(optimizer, model, _STEPS)
        self.watch.mark("training")
        return seen

    def batch(self, seed: int) -> Tensor:
        """Return token ids of a small batch, on the CPU."""
        shape = self._shape()
        return random_tokens(seed, 2, shape.sequence_length, shape.vocab_size)

    def _shape(self) -> Shape:
        request = self.order.request
        return workloads.of(request).shape


def _let_torch_wrap_itself() -> None:
    """Use torch.compile once: the call wraps some of torch's own functions, such as AdamW's."""
    with suppress(Exception):  # torch.compile is missing on some Pythons and platforms
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))


def _ask(question: Callable[[], object]) -> None:
    with suppress(LlmbError):  # the check of the same hook reports the error
        question()


def _answer(question: Callable[[A], T], argument: A) -> T | LlmbError:
    try:
        return question(argument)
    except LlmbError as error:
        return error
