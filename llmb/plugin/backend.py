"""The runtime of a device as the harness uses it: a Protocol, so a plugin inherits nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol, runtime_checkable

from llmb.config import Frozen
from llmb.plugin.faults import PluginFaultError
from llmb.records.lacks import Lacks
from llmb.records.run_record import StepClock
from llmb.records.system import Device


class DeviceMemory(Frozen):
    """Device memory in bytes; None for a figure that the runtime does not give."""

    total_bytes: int | None
    available_bytes: int | None
    #: Highest use since ``reset_peak_memory``.
    peak_bytes: int | None


class EnergyReading(Frozen):
    """Energy in joules since a fixed moment, and how the reading was obtained."""

    joules: float
    source: Literal["counter", "sampled", "estimated"]
    scope: Literal["device", "package", "node"]


class Peak(Frozen):
    """A datasheet's dense peak, and the document that states the peak."""

    flops_per_second: float
    source: str


@runtime_checkable
class Backend(Protocol):
    """The methods and attributes of a device that the harness uses.

    Missing knowledge is None, never 0 or a guess. A backend of a device without some ability, such
    as float64, has one more attribute: ``lacks`` (see ``lacks_of``).
    """

    #: The part of the device string before the colon. Example: "xyz" of "xyz:0".
    device_type: str
    #: "host" if work is done when a call returns, "enqueue" if Python runs ahead of the device,
    #: "device" if ``step_end`` waits for the device's own end of the step.
    step_clock: StepClock
    #: torch.distributed's name of the collective library, None if ranks are not supported.
    distributed_backend: str | None

    def is_available(self) -> bool:
        """Tell whether this process can use a device."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """List the devices, in the order of their index."""
        ...

    def synchronize(self) -> None:
        """Return when all work enqueued on the device has been done."""
        ...

    def step_begin(self) -> None:
        """Mark the beginning of a step (CUDA graphs)."""
        ...

    def step_end(self) -> None:
        """Mark the end of a step (lazy devices cut their graph here)."""
        ...

    def memory(self) -> DeviceMemory:
        """Read the device's memory."""
        ...

    def reset_peak_memory(self) -> None:
        """Start a new peak at the present use."""
        ...

    def energy(self) -> EnergyReading | None:
        """Read the energy counter; return None without a counter."""
        ...

    def peak_flops(self, precision: str) -> Peak | None:
        """Return the datasheet's dense peak in ``precision``, None if no peak is published."""
        ...

    def versions(self) -> dict[str, str]:
        """Return the versions of driver, firmware and libraries."""
        ...


def full_float32_products(backend: Backend) -> AbstractContextManager[object]:
    """Return a context in which the device computes products of float32 matrices in full.

    A TPU computes them in BF16 by default. The backend of such a device has a method
    ``full_float32_products``, which returns the context; other backends need none.
    """
    context: Callable[[], AbstractContextManager[object]]
    context = getattr(backend, "full_float32_products", nullcontext)
    return context()


def lacks_of(backend: Backend) -> Lacks:
    """Return the abilities that the device lacks, from ``backend.lacks``; no attribute: none.

    Example: ``lacks = Lacks(float64=True)``. An attribute ``lazy = True``, as in older packages,
    means the same as ``Lacks(eager_kernels=True)``.

    Raises:
        TypeError: the attribute ``lacks`` is not a ``Lacks``.
    """
    lacks = getattr(backend, "lacks", None) or Lacks()
    if not isinstance(lacks, Lacks):
        raise TypeError(f"lacks is {lacks!r}, expected a llmb.plugin.Lacks")
    lazy = getattr(backend, "lazy", False) is True
    return lacks.model_copy(update={"eager_kernels": True}) if lazy else lacks


def is_lazy(backend: Backend) -> bool:
    """Tell whether the device records a step and compiles the recording, as XLA's devices do.

    Asked in the worker, too: a backend could tell the offer otherwise.

    Raises:
        PluginFaultError: a device of this type cannot record a step.
    """
    lacks = lacks_of(backend)
    if lacks.eager_kernels and (fault := lacks.fault(backend.device_type)):
        raise PluginFaultError(f"the plugin's backend: {fault}")
    return lacks.eager_kernels


def memory_of(backend: Backend) -> DeviceMemory:
    """Read the device's memory; return all None, unread, if the device has no memory figures."""
    if lacks_of(backend).memory_figures:
        return DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)
    return backend.memory()
