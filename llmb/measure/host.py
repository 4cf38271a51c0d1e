"""Describes the host of a run: hardware, software, and load from other programs."""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from llmb.config import environment
from llmb.plugin.builtin import host
from llmb.records.redact import redact_environment
from llmb.records.system import Cpu, Device, HostLoad, HostMemory, SystemDescription

_PCI = Path("/sys/bus/pci/devices")
#: Display controllers and processing accelerators, by the first byte of the PCI class code.
_MAY_ACCELERATE = ("0x03", "0x12")
#: The first four CPU times of a process in psutil: user, system, and both times of ended children.
_OWN_AND_REAPED = 4
_LIMITS = ("memory.max", "cpu.max", "pids.max")


def host_digest() -> str:
    """Return the first 12 hex digits of the host name's sha256, to tell hosts apart."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:12]


def load() -> HostLoad:
    """Read the load of the host: load average, steal time, CPU quota, frequency."""
    frequency = psutil.cpu_freq()
    times = psutil.cpu_times()
    return HostLoad(
        load_1min=round(psutil.getloadavg()[0], 2),
        steal_s=getattr(times, "steal", None),
        total_cpu_s=sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0),
        throttled_periods=_throttled_periods(),
        frequency_mhz=frequency.current if frequency else None,  # type: ignore[redundant-expr]  # None in some VMs
    )


def cpu_s_of(pid: int) -> float | None:
    """Return the CPU seconds of process ``pid`` and all descendants, None if the process is gone.

    Descendants include a compiler's processes. The call takes about 1 ms per 100 processes on the
    host.
    """
    try:
        process = psutil.Process(pid)
        found = sum(process.cpu_times()[:_OWN_AND_REAPED])
        family = process.children(recursive=True)
    except psutil.Error:
        return None
    for each in family:
        with suppress(psutil.Error):  # the child has just ended
            found += sum(each.cpu_times()[:_OWN_AND_REAPED])
    return found


def describe(
    *,
    devices: Sequence[Device],
    torch_version: str,
    drivers: Mapping[str, str],
    plugin_environment: Mapping[str, str],
    before: HostLoad,
    after: HostLoad,
) -> SystemDescription:
    """Return the system of a run; ``plugin_environment``: extra variables of child processes."""
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


def free_disk_bytes() -> dict[str, int | None]:
    """Return the free bytes of the working folder and of the folder for temporary files."""
    places = {"working folder": Path(), "temporary files": Path(tempfile.gettempdir())}
    found: dict[str, int | None] = {}
    for name, place in places.items():
        try:
            found[name] = shutil.disk_usage(place).free
        except OSError:
            found[name] = None
    return found


def container_limits() -> dict[str, str]:
    """Return the container's limits in the kernel's format; empty outside of a container.

    Example: ``{"cpu.max": "400000 100000"}`` allows 4 cores.
    """
    limits = {name: host.read_text(Path("/sys/fs/cgroup") / name) for name in _LIMITS}
    return {name: limit for name, limit in limits.items() if limit is not None}


def bus_accelerators() -> tuple[str, ...]:
    """Return PCI devices that may be accelerators, as ``vendor:device class``, all hexadecimal.

    The list does not depend on drivers or torch. A plain VGA adapter may be a server's own.
    Example: ``10de:2330 class 0302``, an NVIDIA H100.
    """
    return tuple(pci_identity(device) for device in pci_accelerators(_PCI))


def pci_accelerators(bus: Path) -> tuple[Path, ...]:
    """Return the folders of the devices below ``bus`` that may be accelerators, in order."""
    return tuple(
        device
        for device in sorted(bus.glob("*"))
        if (host.read_text(device / "class") or "").startswith(_MAY_ACCELERATE)
    )


def pci_identity(device: Path) -> str:
    """Return vendor, device and class of a PCI device. Example: ``10de:2330 class 0302``."""
    names = ("vendor", "device", "class")
    bare = [(host.read_text(device / name) or "").removeprefix("0x") for name in names]
    return f"{bare[0]}:{bare[1]} class {bare[2][:4]}"


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
