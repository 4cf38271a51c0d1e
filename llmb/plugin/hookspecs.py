"""The hooks of llmb. A plugin can act at these points only.

A hook implementation may take fewer arguments than the hook's spec, which lets specs grow.
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
    """Access to a canonical parameter inside a post-processed model that fused or repacked it."""

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
    """Return environment variables to set before torch is imported (threads, allocator, runtime).

    Example: ``{"OMP_NUM_THREADS": "16"}``. The hook is called in ``offer``; the supervisor sets
    the variables for ``worker`` and ``honest_run``.
    """


@hookspec(firstresult=True)
def llmb_backend(config: RunConfig) -> Backend | None:
    """Return the backend of ``config.device``. Called first in every process.

    Without this hook the harness drives the CPU or the accelerator that torch itself supports.
    """


@hookspec(firstresult=True)
def llmb_options() -> Sequence[PluginOption] | None:
    """Return the options ``llmb run -O name=value`` may set; the values arrive in the config."""


@hookspec(firstresult=True)
def llmb_precisions(config: RunConfig) -> Sequence[Precision | Refused] | None:
    """Return the formats the device computes in, fastest first; a plugin may define new formats.

    A ``Refused`` in the list says why the device, or the chosen options, rule a format out.
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
    """Return the model to train: permitted point 2.

    The harness has made ``model`` from the seed, and has cast and moved it to the device.
    The returned model must keep the real-valued function of ``model``:
    ``model(ids, labels=labels)`` returns the loss.
    """


@hookspec(firstresult=True)
def llmb_optimizer_options(config: RunConfig) -> Mapping[str, bool] | None:
    """Return any of ``foreach``, ``fused``, ``capturable`` for the harness's AdamW."""


@hookspec(firstresult=True)
def llmb_parameter_map(model: nn.Module) -> Mapping[str, ParameterView] | None:
    """Return canonical name -> view for a model with fused, repacked or sharded parameters.

    A parameter that keeps its name may be left out. Without this hook the harness finds parameters
    by name. G1 tells which matrices may be stored in one parameter (docs/plugins.md).
    """


@hookspec(firstresult=True)
def llmb_patches() -> Sequence[DeclaredPatch] | None:
    """Declare callables that an import of the vendor's library replaces, each with a reason."""


@hookspec(firstresult=True)
def llmb_helpers() -> Sequence[DeclaredHelper] | None:
    """Declare threads that the plugin keeps beside the steps, each with a reason.

    Example: a thread that reads a power sensor. A declaration has the thread's name and the
    largest share of one core's CPU time that the thread needs (0.05 or less). Rule N2 holds the
    thread to this share.
    """


@hookspec(firstresult=True)
def llmb_native_libraries() -> Sequence[NativeLibrary] | None:
    """Declare native libraries outside Python's packages without published sources.

    llmb finds compiled parts of the plugin's own package, and of packages the plugin imports,
    without this hook.
    """


@hookspec(firstresult=True)
def llmb_telemetry(backend: Backend) -> Mapping[str, float] | None:
    """Return gauges and counters of the device by name, unit included: ``{"power_w": 690.0}``.

    ``backend`` is the object that ``llmb_backend`` returned. The harness calls the hook at every
    fence, so the hook must be quick. Two names have a meaning: ``compilations``, the number of
    programs the runtime has compiled until now in this process, and ``throttled``, 1 while the
    device slows itself for power or heat. Both are reported where they show inside the timed
    window.
    """


@hookspec(firstresult=True)
def llmb_program(tensors: Sequence[Tensor]) -> str | None:
    """Return the text (HLO) of the program that is going to compute ``tensors``.

    For devices that record a step and run the recorded step later. The harness calls the hook
    once, in the first untimed step, after the optimizer's step and before ``Backend.step_end``,
    and counts the types in the returned text.
    """


@hookspec(firstresult=True)
def llmb_describe_system(config: RunConfig) -> Mapping[str, str] | None:
    """Return vendor facts for the record: driver, firmware, clocks, topology."""
