"""Whether two runs were done on the same class of hardware (a condition of REPRODUCED)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmb.records.run_record import RunRecord
from llmb.records.system import Cpu, Device

#: Drivers keep some of a device's memory for themselves, some more and some less. Variants of one
#: model are further apart (40 and 80 GB, 24 and 32 GB).
_MEMORY_TOLERANCE = 0.05
_CPU = "cpu"


@dataclass(frozen=True)
class HardwareClass:
    """What a run computed on, as far as speed depends on it; None where it could not be read."""

    #: Ranks, and the machines they were on.
    devices: int
    nodes: int
    #: torch's name of the kind of device, without a number.
    kind: str
    #: The processor's own name where that is what computed, else the device's.
    model: str | None
    #: Of a processor: its instruction set, and the cores that the process might use.
    architecture: str | None = None
    cores: int | None = None
    #: Of an accelerator: its memory. How much a host has decides what fits, not how fast it is.
    memory_bytes: int | None = None

    def __str__(self) -> str:
        """Return it in a few words."""
        parts = [f"{self.devices} x {self.model or f'unknown {self.kind}'}"]
        if self.cores is not None:
            parts.append(f"{self.cores} {self.architecture or ''} cores".replace("  ", " "))
        if self.memory_bytes is not None:
            parts.append(f"{self.memory_bytes / 1e9:.1f} GB")
        return ", ".join(parts)


def of_record(record: RunRecord) -> HardwareClass:
    """Return what the run of ``record`` computed on."""
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
    """Return the device called ``name`` among ``devices``, the first where it has no number."""
    named = next((device for device in devices if device.name == name), None)
    return named or next(iter(devices), None) if ":" not in name else named


def unlike(a: HardwareClass, b: HardwareClass) -> tuple[str, ...]:
    """Return in what two classes differ, in sentences; none when they are the same.

    What is not known of one of them may differ: then they are not the same.
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
