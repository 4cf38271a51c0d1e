"""The hardware class of a run: REPRODUCED requires the same class in both runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmb.records.run_record import RunRecord
from llmb.records.system import Cpu, Device

#: Drivers reserve a varying part of a device's memory. Variants of one model differ by more than
#: 5 %, such as 40 and 80 GB, or 24 and 32 GB.
_MEMORY_TOLERANCE = 0.05
_CPU = "cpu"


@dataclass(frozen=True)
class HardwareClass:
    """The properties of the hardware that determine speed; None: could not be read."""

    #: Number of ranks, and number of machines.
    devices: int
    nodes: int
    #: torch's device type without index, such as ``cuda``.
    kind: str
    #: Model name of the processor in a CPU run, else of the device. Example: ``NVIDIA H100``.
    model: str | None
    #: Only for CPU runs: instruction set, such as ``x86_64``, and number of usable cores.
    architecture: str | None = None
    cores: int | None = None
    #: Only for accelerators: device memory. Host memory limits the model size, not the speed.
    memory_bytes: int | None = None

    def __str__(self) -> str:
        """Return the class in a few words. Example: ``8 x NVIDIA H100, 85.0 GB``."""
        parts = [f"{self.devices} x {self.model or f'unknown {self.kind}'}"]
        if self.cores is not None:
            parts.append(f"{self.cores} {self.architecture or ''} cores".replace("  ", " "))
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 1e9:.1f} GB")
        return ", ".join(parts)


def of_record(record: RunRecord) -> HardwareClass:
    """Return the hardware class of the run of ``record``."""
    topology, system = record.topology, record.system
    device, size, nodes = record.config.device, topology.world_size, topology.nodes
    return describe(device, system.cpu, system.devices, size, nodes)


def describe(
    device: str, cpu: Cpu, devices: Sequence[Device], world_size: int = 1, nodes: int = 1
) -> HardwareClass:
    """Return the class of ``device`` in a machine with processor ``cpu`` and ``devices``."""
    kind = device.partition(":")[0]
    if kind == _CPU:
        return HardwareClass(
            devices=world_size,
            nodes=nodes,
            kind=kind,
            model=cpu.model,
            architecture=cpu.architecture,
            cores=cpu.usable_cores,
        )
    used = _used(device, devices)
    return HardwareClass(
        devices=world_size,
        nodes=nodes,
        kind=kind,
        model=used.description if used else None,
        memory_bytes=used.memory_bytes if used else None,
    )


def _used(name: str, devices: Sequence[Device]) -> Device | None:
    """Return the device ``name``; for a name without index, such as ``cuda``, the first device."""
    named = next((device for device in devices if device.name == name), None)
    return named or next(iter(devices), None) if ":" not in name else named


def unlike(a: HardwareClass, b: HardwareClass) -> tuple[str, ...]:
    """Return the differences of two classes in sentences; none for the same class.

    An unknown device model counts as a difference, and so does any value known for one class only.
    """
    return tuple(_unlike(a, b))


def _unlike(a: HardwareClass, b: HardwareClass) -> Iterator[str]:
    if (a.devices, a.nodes) != (b.devices, b.nodes):
        yield f"{a.devices} devices in {a.nodes} nodes, {b.devices} in {b.nodes}"
    if a.kind != b.kind:
        yield f"devices of type {a.kind}, of type {b.kind}"
        return
    if a.model is None or b.model is None:
        yield "the model of a device is not known"
    elif a.model.split() != b.model.split():  # vendors pad names with spaces
        yield f"{a.model}, {b.model}"
    if a.architecture != b.architecture:
        yield f"instruction set {a.architecture}, {b.architecture}"
    if a.cores != b.cores:
        yield f"{a.cores} usable cores, {b.cores}"
    if not _same_memory(a.memory_bytes, b.memory_bytes):
        yield f"{_gb(a.memory_bytes)} of device memory, {_gb(b.memory_bytes)}"


def _same_memory(a: int | None, b: int | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= _MEMORY_TOLERANCE * max(a, b)


def _gb(count: int | None) -> str:
    return "an unknown amount" if count is None else f"{count / 1e9:.1f} GB"
