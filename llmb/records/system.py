"""The machine of a run; None for facts that could not be read."""

from __future__ import annotations

from pydantic import Field

from llmb.config import Frozen


class Cpu(Frozen):
    """The host processor."""

    model: str | None
    architecture: str
    physical_cores: int | None
    logical_cores: int | None
    #: Cores this process may run on (affinity and container limits).
    usable_cores: int
    max_frequency_mhz: float | None


class HostMemory(Frozen):
    """Main memory, as the supervisor may use it (container limits included)."""

    total_bytes: int
    available_bytes: int


class Device(Frozen):
    """One device of the plugin's backend."""

    name: str
    description: str | None = None
    memory_bytes: int | None = None


class HostLoad(Frozen):
    """The load of the host by other programs, read once."""

    #: Mean run-queue length over the last minute.
    load_1min: float | None
    #: CPU time the hypervisor gave to other machines since boot, in seconds.
    steal_s: float | None
    #: All CPU time since boot, idle included, over all cores: the base of ``steal_s``.
    total_cpu_s: float | None = None
    #: How often the CPU quota has stopped the container since the container's start.
    throttled_periods: int | None
    #: Present clock of the first core.
    frequency_mhz: float | None


class SystemDescription(Frozen):
    """Hardware and software of the run, host load before and after the run."""

    cpu: Cpu
    memory: HostMemory
    devices: tuple[Device, ...]
    os: str
    python: str
    torch: str | None
    #: Versions reported by the backend and the plugin: driver, firmware, libraries.
    drivers: dict[str, str] = Field(default_factory=dict)
    #: Variables that steer torch or libraries; values that look secret are redacted.
    env: dict[str, str] = Field(default_factory=dict)
    load_before: HostLoad
    load_after: HostLoad
