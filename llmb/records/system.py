"""The machine a run was done on, as far as it could be read; None where it could not."""

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
    """What else the host was doing, read once."""

    #: Mean run-queue length over the last minute.
    load_1min: float | None
    #: CPU time the hypervisor gave to others since boot, in seconds.
    steal_s: float | None
    #: All CPU time since boot, idle included, over all cores: what ``steal_s`` is a share of.
    total_cpu_s: float | None = None
    #: Times the container's CPU quota stopped it since it started.
    throttled_periods: int | None
    #: Present clock of the first core.
    frequency_mhz: float | None


class SystemDescription(Frozen):
    """Hardware and software of the run, host load before and after it."""

    cpu: Cpu
    memory: HostMemory
    devices: tuple[Device, ...]
    os: str
    python: str
    torch: str | None
    #: Version of everything the backend and the plugin named: driver, firmware, libraries.
    drivers: dict[str, str] = Field(default_factory=dict)
    #: Variables that steer torch or its libraries; values that look secret are redacted.
    env: dict[str, str] = Field(default_factory=dict)
    load_before: HostLoad
    load_after: HostLoad
