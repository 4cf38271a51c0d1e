"""The device of the example: the CPU, with every question of llmb answered as plainly as can be."""

from __future__ import annotations

from llmb.plugin import Device, DeviceMemory, EnergyReading, Peak


class ExampleBackend:
    """Satisfies ``llmb.plugin.Backend`` without inheriting from it."""

    device_type = "cpu"
    step_clock = "host"
    distributed_backend = "gloo"

    def is_available(self) -> bool:
        """A CPU is always there."""
        return True

    def devices(self) -> tuple[Device, ...]:
        """List one device."""
        return (Device(name="cpu", description="the example's CPU", memory_bytes=None),)

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def step_begin(self) -> None:
        """Nothing to mark."""

    def step_end(self) -> None:
        """Nothing to mark."""

    def memory(self) -> DeviceMemory:
        """Missing knowledge is None, never 0."""
        return DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)

    def reset_peak_memory(self) -> None:
        """There is no peak to reset."""

    def energy(self) -> EnergyReading | None:
        """No counter."""
        return None

    def peak_flops(self, precision: str) -> Peak | None:
        """A datasheet's peak, with the place it is written; None for a format it does not name."""
        if precision != "FP32":
            return None
        return Peak(flops_per_second=1e12, source="example datasheet, page 1")

    def versions(self) -> dict[str, str]:
        """Versions of driver and libraries."""
        return {"example_library": "7.8.9"}
