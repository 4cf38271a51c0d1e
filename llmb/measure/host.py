"""The host a run is done on: what it is, and what else it was doing."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from llmb.config import environment
from llmb.plugin.builtin import host
from llmb.records.redact import redact_environment
from llmb.records.system import Cpu, Device, HostLoad, HostMemory, SystemDescription


def load() -> HostLoad:
    """Read what else the host is doing."""
    frequency = psutil.cpu_freq()
    times = psutil.cpu_times()
    return HostLoad(
        load_1min=round(psutil.getloadavg()[0], 2),
        steal_s=getattr(times, "steal", None),
        total_cpu_s=sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0),
        throttled_periods=_throttled_periods(),
        frequency_mhz=frequency.current if frequency else None,  # type: ignore[redundant-expr]  # None in some VMs
    )


def describe(
    *,
    devices: Sequence[Device],
    torch_version: str,
    drivers: Mapping[str, str],
    plugin_environment: Mapping[str, str],
    before: HostLoad,
    after: HostLoad,
) -> SystemDescription:
    """Return the system of a run; ``plugin_environment`` is what its children got on top."""
    frequency = psutil.cpu_freq()
    return SystemDescription(
        cpu=Cpu(
            model=_cpu_model(),
            architecture=platform.machine(),
            physical_cores=psutil.cpu_count(logical=False),
            logical_cores=psutil.cpu_count(),
            usable_cores=host.usable_cores(),
            max_frequency_mhz=(frequency.max or None) if frequency else None,  # type: ignore[redundant-expr]
        ),
        memory=HostMemory(
            total_bytes=host.memory_limit_bytes(), available_bytes=host.available_memory_bytes()
        ),
        devices=tuple(devices),
        os=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        torch=torch_version,
        drivers=dict(drivers),
        env=redact_environment({**environment(), **plugin_environment}),
        load_before=before,
        load_after=after,
    )


def _cpu_model() -> str | None:
    for line in (host.read_text(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def _throttled_periods() -> int | None:
    for line in (host.read_text(Path("/sys/fs/cgroup/cpu.stat")) or "").splitlines():
        if line.startswith("nr_throttled "):
            return int(line.split()[1])
    return None
