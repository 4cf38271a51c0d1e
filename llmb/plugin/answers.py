"""Checks a backend's return values: an error names the plugin and the method at fault."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from llmb.config import Precision, Refused
from llmb.errors import LlmbError
from llmb.plugin.backend import Backend, DeviceMemory, EnergyReading, Peak, lacks_of
from llmb.plugin.faults import PluginFaultError, told
from llmb.records.run_record import StepClock
from llmb.records.system import Device

_NOTHING = type(None)


class Answers:
    """Checked calls to a backend; a vendor's library may fail in any way."""

    def __init__(self, plugin: str, backend: Backend) -> None:
        """Ask ``backend``, on behalf of ``plugin``.

        Raises:
            PluginFaultError: an attribute of ``backend`` has a wrong type or value.
        """
        self._plugin, self._backend = plugin, backend
        self.device_type, self.step_clock = backend.device_type, backend.step_clock
        try:
            self.lacks = lacks_of(backend)
        except TypeError as error:
            raise self._fault(str(error)) from error
        if not isinstance(self.device_type, str):
            raise self._fault(f"device_type is {self.device_type!r}, expected a string")
        if self.step_clock not in get_args(StepClock):
            allowed = " or ".join(map(repr, get_args(StepClock)))
            raise self._fault(f"step_clock is {self.step_clock!r}, expected {allowed}")

    def is_available(self) -> bool:
        """Tell whether a device can be used."""
        return bool(self._ask("is_available", object))

    def devices(self) -> tuple[Device, ...]:
        """List the devices."""
        devices = self._ask("devices", Sequence)
        for device in devices:
            if not isinstance(device, Device):
                raise self._fault(f"devices returned a {type(device).__name__}, expected Devices")
        return tuple(devices)

    def available_bytes(self) -> int | None:
        """Return the device's free memory in bytes, None if the device has no memory figures."""
        if self.lacks.memory_figures:
            return None
        memory: DeviceMemory = self._ask("memory", DeviceMemory)
        return memory.available_bytes

    def check_energy(self) -> None:
        """Read the energy counter once, to find a broken counter before a run."""
        self._ask("energy", EnergyReading, _NOTHING)

    def peak_flops(self, precision: str) -> Peak | None:
        """Return the datasheet's peak."""
        peak: Peak | None = self._ask("peak_flops", Peak, _NOTHING, precision=precision)
        return peak

    def versions(self) -> dict[str, str]:
        """Return versions by name."""
        found = self._ask("versions", Mapping)
        return {str(name): str(version) for name, version in found.items()}

    def _ask(self, method: str, *kinds: type, **arguments: object) -> Any:
        try:
            answer = getattr(self._backend, method)(*arguments.values())
        except LlmbError:  # a message that the backend wrote is passed on unchanged
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise self._fault(f"{method} raised {told(error)}") from error
        if not isinstance(answer, kinds):
            wanted = " or ".join("None" if k is _NOTHING else k.__name__ for k in kinds)
            raise self._fault(f"{method} returned a {type(answer).__name__}, expected {wanted}")
        return answer

    def _fault(self, what: str) -> PluginFaultError:
        backend = type(self._backend).__name__
        return PluginFaultError(f"plugin {self._plugin!r}: {backend}.{what}")


def check_dtypes(plugin: str, formats: Sequence[Precision | Refused], known: Sequence[str]) -> None:
    """Check that the dtype of every offered format is in ``known``.

    Raises:
        PluginFaultError: a format has a dtype that is not in ``known``.
    """
    for offered in formats:
        if isinstance(offered, Precision) and offered.dtype not in known:
            raise PluginFaultError(
                f"plugin {plugin!r}: llmb_precisions returned {offered.name} with dtype "
                f"{offered.dtype!r}, which this torch does not have"
            )
