"""Loads exactly one plugin and calls each hook through a typed and checked method.

Only processes that may hold vendor code import this module; ``reference_run`` does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pluggy

from llmb.config import AUTO_DEVICE, MOST_WARMUP_STEPS, Precision, Refused, RunConfig
from llmb.errors import LlmbError, NotEnoughMemoryError, is_out_of_memory
from llmb.formats import fault_of
from llmb.plugin import hookspecs
from llmb.plugin.backend import Backend
from llmb.plugin.discovery import BUILT_IN, entry_point, find
from llmb.plugin.faults import PluginFaultError, load_fault, members_missing, told
from llmb.plugin.native import NativeLibrary
from llmb.plugin.options import PluginOption
from llmb.records.run_record import DeclaredHelper, DeclaredPatch

if TYPE_CHECKING:
    from torch import Tensor, nn

_OPTIMIZER_SWITCHES = {"foreach", "fused", "capturable"}
_VIEW = ("padding", "read", "write")
#: Exceptions plugin code may raise. Ctrl-C never reaches a child: an interrupt is the plugin's own.
_ANYTHING = (Exception, SystemExit, KeyboardInterrupt)


def _torchs_own(device: str) -> str:
    """Return the built-in plugin for ``device``; for "auto" an accelerator before the CPU."""
    import torch

    wanted = device.partition(":")[0]
    if wanted == AUTO_DEVICE and not torch.accelerator.is_available():
        wanted = "cpu"
    return "cpu" if wanted == "cpu" else "generic"


class Plugin:
    """One loaded plugin. Every hook is a method; an error names the hook that misbehaved."""

    def __init__(self, name: str) -> None:
        """Load plugin ``name``.

        Raises:
            UnavailableError: plugin ``name`` is not installed.
            PluginFaultError: the plugin cannot be loaded.
        """
        self.name = name
        found = find(name)
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        try:
            if name in BUILT_IN:
                self._manager.register(import_module(BUILT_IN[name]), name)
            else:
                self._manager.register(entry_point(found).load(), name)
            self._manager.check_pending()  # catches a misspelled hook
        except _ANYTHING as error:  # a vendor's import can fail in any way
            raise PluginFaultError(
                f"plugin {name!r} cannot be loaded: {load_fault(error, hookspecs)}"
            ) from error
        self.module_name = found.module
        self.distribution = found.distribution
        self.version = found.version

    def _call(self, hook: str, expected: type, **arguments: Any) -> Any:
        caller = getattr(self._manager.hook, hook)
        try:
            value = caller(**arguments)
        except LlmbError:  # a message that the plugin wrote is passed on unchanged
            raise
        except _ANYTHING as error:
            kind = NotEnoughMemoryError if is_out_of_memory(error) else PluginFaultError
            raise kind(f"plugin {self.name!r}: {hook} raised {told(error)}") from error
        if value is not None and not isinstance(value, expected):
            wanted = "None" if expected is type(None) else expected.__name__
            raise PluginFaultError(
                f"plugin {self.name!r}: {hook} returned a {type(value).__name__}, "
                f"expected {wanted}{members_missing(value, expected)}"
            )
        return value

    def environment_variables(self, config: RunConfig) -> dict[str, str]:
        """Return the variables to set before torch is imported."""
        mapping = self._call("llmb_environment_variables", Mapping, config=config) or {}
        variables = {str(key): str(value) for key, value in mapping.items()}
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                raise PluginFaultError(
                    f"plugin {self.name!r}: llmb_environment_variables returned {name!r}, "
                    "which no environment variable can be"
                )
        return variables

    def backend(self, config: RunConfig) -> Backend:
        """Return the backend for ``config.device``; torch's own if the plugin has no backend."""
        backend: Backend | None = self._call("llmb_backend", Backend, config=config)
        if backend is None:
            backend = import_module(BUILT_IN[_torchs_own(config.device)]).llmb_backend(config)
        assert backend is not None
        return backend

    def options(self) -> tuple[PluginOption, ...]:
        """Return the options the plugin offers."""
        return self._each("llmb_options", PluginOption)

    def precisions(self, config: RunConfig) -> tuple[Precision | Refused, ...]:
        """Return the formats the plugin offers on ``config.device``, preferred first, or refuses.

        Raises:
            PluginFaultError: the plugin offers a format twice, or a format is faulty.
        """
        formats: tuple[Precision | Refused, ...]
        formats = self._each("llmb_precisions", Precision, Refused, config=config)
        for offered in formats:
            if not isinstance(offered, Precision):
                continue
            fault = fault_of(offered.name, offered.bits, offered.dtype, offered.format)
            if fault is not None:
                raise PluginFaultError(
                    f"plugin {self.name!r}: llmb_precisions returned {offered.name} with {fault}"
                )
        names = [precision.name.upper() for precision in formats]
        for name in names:
            if names.count(name) > 1:
                raise PluginFaultError(
                    f"plugin {self.name!r}: llmb_precisions returned {name} more than once"
                )
        return formats

    def warmup_steps(self, config: RunConfig) -> int:
        """Return the untimed steps the plugin needs, at least 1.

        Raises:
            PluginFaultError: the plugin asks for more steps than a run may have.
        """
        steps = max(1, self._call("llmb_warmup_steps", int, config=config) or 1)
        if steps > MOST_WARMUP_STEPS:
            raise PluginFaultError(
                f"plugin {self.name!r}: llmb_warmup_steps returned {steps}, at most "
                f"{MOST_WARMUP_STEPS} are allowed: compile before the first step"
            )
        return steps

    def set_environment(self, config: RunConfig) -> None:
        """Let the plugin set up its backend: permitted point 1."""
        self._call("llmb_set_environment", type(None), config=config)

    def post_process_model(self, model: nn.Module, config: RunConfig) -> nn.Module:
        """Return the model to train: permitted point 2."""
        from torch import nn

        processed: nn.Module | None = self._call(
            "llmb_post_process_model", nn.Module, model=model, config=config
        )
        return model if processed is None else processed

    def optimizer_options(self, config: RunConfig) -> dict[str, bool]:
        """Return the plugin's choice of AdamW kernel."""
        options = self._call("llmb_optimizer_options", Mapping, config=config) or {}
        unknown = set(options) - _OPTIMIZER_SWITCHES
        if unknown:
            raise PluginFaultError(
                f"plugin {self.name!r}: llmb_optimizer_options returned {sorted(unknown)}, "
                f"only {sorted(_OPTIMIZER_SWITCHES)} may be chosen"
            )
        for name, value in options.items():
            if not isinstance(value, bool):
                raise PluginFaultError(
                    f"plugin {self.name!r}: llmb_optimizer_options returned a "
                    f"{type(value).__name__} for {name!r}, expected bool"
                )
        return dict(options)

    def parameter_map(self, model: nn.Module) -> Mapping[str, hookspecs.ParameterView] | None:
        """Return the plugin's map of canonical parameters; None: the names are unchanged."""
        views: Mapping[str, hookspecs.ParameterView] | None
        views = self._call("llmb_parameter_map", Mapping, model=model)
        for name, view in (views or {}).items():
            if not all(hasattr(view, member) for member in _VIEW):
                raise PluginFaultError(
                    f"plugin {self.name!r}: llmb_parameter_map returned a {type(view).__name__} "
                    f"for {name!r}, expected an object with {', '.join(_VIEW)}"
                )
        return views

    def patches(self) -> tuple[DeclaredPatch, ...]:
        """Return the patches the plugin declares."""
        return self._each("llmb_patches", DeclaredPatch)

    def helpers(self) -> tuple[DeclaredHelper, ...]:
        """Return the helper threads the plugin declares."""
        return self._each("llmb_helpers", DeclaredHelper)

    def describe_system(self, config: RunConfig) -> dict[str, str]:
        """Return the plugin's facts about driver, firmware and topology."""
        facts = self._call("llmb_describe_system", Mapping, config=config) or {}
        return {str(key): str(value) for key, value in facts.items()}

    def native_libraries(self) -> tuple[NativeLibrary, ...]:
        """Return the closed libraries the plugin declares."""
        return self._each("llmb_native_libraries", NativeLibrary)

    def telemetry(self, backend: Backend) -> dict[str, float]:
        """Return the plugin's gauges and counters that have finite values."""
        readings = self._call("llmb_telemetry", Mapping, backend=backend) or {}
        try:
            values = {str(name): float(value) for name, value in readings.items()}
        except (TypeError, ValueError) as error:
            raise PluginFaultError(
                f"plugin {self.name!r}: llmb_telemetry returned something that is no number "
                f"({error})"
            ) from None
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def program(self, tensors: Sequence[Tensor]) -> str | None:
        """Return the text of the program that will compute ``tensors``, None without a program."""
        text: str | None = self._call("llmb_program", str, tensors=tensors)
        return text

    def _each(self, hook: str, *kinds: type, **arguments: Any) -> tuple[Any, ...]:
        values = self._call(hook, Sequence, **arguments) or ()
        for value in values:
            if not isinstance(value, kinds):
                raise PluginFaultError(
                    f"plugin {self.name!r}: {hook} returned a {type(value).__name__}, "
                    f"expected {' or '.join(f'{kind.__name__}s' for kind in kinds)}"
                )
        return tuple(values)
