"""The hooks of llmb: every point at which a plugin may act, and nothing else.

An implementation may take fewer arguments than its spec, so specs can grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import pluggy

from llmb.config import Precision, Refused, RunConfig
from llmb.plugin.backend import Backend
from llmb.plugin.native import NativeLibrary
from llmb.plugin.options import PluginOption
from llmb.records.run_record import DeclaredHelper, DeclaredPatch

if TYPE_CHECKING:
    from torch import Tensor, nn

PROJECT = "llmb"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Kind = Literal["value", "grad", "exp_avg", "exp_avg_sq"]


class ParameterView(Protocol):
    """Where a canonical parameter lives in a post-processed model that fused or repacked it."""

    @property
    def padding(self) -> tuple[str, ...]:
        """Names of stored parameters that hold declared padding besides canonical values."""
        ...

    def read(self, kind: Kind) -> Tensor | None:
        """Return the parameter's value, gradient or moment in its canonical shape."""
        ...

    def write(self, value: Tensor) -> None:
        """Overwrite the parameter's value, given in its canonical shape."""
        ...


@hookspec(firstresult=True)
def llmb_environment_variables(config: RunConfig) -> Mapping[str, str] | None:
    """Return variables that must be set before torch is imported (threads, allocator, runtime).

    Called in ``offer``; the supervisor sets them for ``worker`` and ``honest_run``.
    """


@hookspec(firstresult=True)
def llmb_backend(config: RunConfig) -> Backend | None:
    """Return the backend of ``config.device``. Called first in every process.

    Without this hook the harness drives the CPU or the accelerator torch itself knows.
    """


@hookspec(firstresult=True)
def llmb_options() -> Sequence[PluginOption] | None:
    """Return the options ``llmb run -O name=value`` may set; they arrive in the config."""


@hookspec(firstresult=True)
def llmb_precisions(config: RunConfig) -> Sequence[Precision | Refused] | None:
    """Return the formats the device computes in, best first for speed; formats may be new ones.

    A ``Refused`` among them says why the device, or the chosen options, rule a format out.
    """


@hookspec(firstresult=True)
def llmb_warmup_steps(config: RunConfig) -> int | None:
    """Return how many untimed steps a compiler needs before it is done (default 1, at most 20)."""


@hookspec(firstresult=True)
def llmb_set_environment(config: RunConfig) -> None:
    """Set up torch and the backend before the model exists: permitted point 1.

    Settings and environment are compared before and after.
    """


@hookspec(firstresult=True)
def llmb_post_process_model(model: nn.Module, config: RunConfig) -> nn.Module | None:
    """Return the model that is trained: permitted point 2.

    ``model`` has been made from the seed, cast and moved. What comes back must keep its
    real-valued function: ``model(ids, labels=labels)`` returns the loss.
    """


@hookspec(firstresult=True)
def llmb_optimizer_options(config: RunConfig) -> Mapping[str, bool] | None:
    """Return any of ``foreach``, ``fused``, ``capturable`` for the harness's AdamW."""


@hookspec(firstresult=True)
def llmb_parameter_map(model: nn.Module) -> Mapping[str, ParameterView] | None:
    """Return canonical name -> view for a model whose parameters were fused, repacked or sharded.

    Without this hook parameters are found by name.
    """


@hookspec(firstresult=True)
def llmb_patches() -> Sequence[DeclaredPatch] | None:
    """Declare callables that importing the vendor's library replaces, each with a reason."""


@hookspec(firstresult=True)
def llmb_helpers() -> Sequence[DeclaredHelper] | None:
    """Declare threads that the plugin keeps beside the steps, each with a reason.

    Example: a thread that reads a power sensor. Each has a name and the share of one core's CPU
    time that it needs at most (0.05 or less), to which rule N2 holds it.
    """


@hookspec(firstresult=True)
def llmb_native_libraries() -> Sequence[NativeLibrary] | None:
    """Declare native libraries outside Python's packages whose sources are not published.

    Compiled parts of the plugin's own package, and of packages it imports, are found without it.
    """


@hookspec(firstresult=True)
def llmb_telemetry(backend: Backend) -> Mapping[str, float] | None:
    """Return gauges and counters of the device by name, unit included: ``{"power_w": 690.0}``.

    ``backend`` is what ``llmb_backend`` returned. Read at every fence, so it must be quick. Two
    names have a meaning: ``compilations``, how many programs the runtime has compiled so far in
    this process, and ``throttled``, 1 while the device slows itself for power or heat. Both are
    reported where they show inside the timed window.
    """


@hookspec(firstresult=True)
def llmb_program(tensors: Sequence[Tensor]) -> str | None:
    """Return the text (HLO) of the program that is going to compute ``tensors``.

    For devices that record a step and run it later. Asked once, in the first untimed step, after
    the optimizer's step and before ``Backend.step_end``; types are counted in what comes back.
    """


@hookspec(firstresult=True)
def llmb_describe_system(config: RunConfig) -> Mapping[str, str] | None:
    """Return vendor facts for the record: driver, firmware, clocks, topology."""
