"""Facts of the host from Linux and psutil: memory and cores within limits, RAPL energy."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from llmb.config import environment

_CGROUP = Path("/sys/fs/cgroup")
_POWERCAP = Path("/sys/class/powercap")
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36  # linux/prctl.h
_PR_CAPBSET_DROP, _CAP_SYS_PTRACE = 24, 19  # linux/prctl.h, linux/capability.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc
_RESET_PEAK = "5"  # Documentation/filesystems/proc.rst: resets VmHWM


def read_text(path: Path) -> str | None:
    """Return the stripped content of a kernel file, None for an unreadable file."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def memory_limit_bytes() -> int:
    """Return main memory in bytes, or the container's limit if the limit is lower."""
    total = psutil.virtual_memory().total
    limit = read_text(_CGROUP / "memory.max") or "max"
    return min(total, int(limit)) if limit.isdigit() else total


def available_memory_bytes() -> int:
    """Return the bytes a new process could take without swapping, within container limits."""
    available = psutil.virtual_memory().available
    used = read_text(_CGROUP / "memory.current") or ""
    if used.isdigit():
        # The limit counts page cache, and the kernel frees page cache under pressure.
        stat = dict(
            line.split() for line in (read_text(_CGROUP / "memory.stat") or "").splitlines()
        )
        reclaimable = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        available = min(available, memory_limit_bytes() - int(used) + reclaimable)
    return available


def usable_cores() -> int:
    """Return the logical cores this process may use: affinity and the container's CPU quota."""
    cores = len(psutil.Process().cpu_affinity()) if hasattr(os, "sched_getaffinity") else None
    cores = cores or psutil.cpu_count() or 1
    quota, _, period = (read_text(_CGROUP / "cpu.max") or "max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def cpu_flags() -> set[str]:
    """Return the processor's feature flags as Linux lists them, empty on other systems."""
    for line in (read_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, Arm
            return set(value.split())
    return set()


def compute_threads() -> int:
    """Return the thread count: one per physical core that this process may use."""
    logical, physical = psutil.cpu_count() or 1, psutil.cpu_count(logical=False) or 1
    return max(1, min(physical, usable_cores() * physical // logical))


def variables(threads: object = None) -> dict[str, str]:
    """Return plugin cpu's variables: ``threads`` of OpenMP, else the usual count; huge pages."""
    count = threads or environment().get("OMP_NUM_THREADS") or compute_threads()
    # torch allocates with transparent huge pages: 0.4 GB less at the peak (measured).
    return {"OMP_NUM_THREADS": str(count), "THP_MEM_ALLOC_ENABLE": "1"}


def peak_resident_bytes() -> int | None:
    """Return the highest resident size of this process since the last reset."""
    for line in (read_text(Path("/proc/self/status")) or "").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def reset_peak_resident() -> None:
    """Start a new peak at the present resident size, if the kernel allows a reset."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK, encoding="ascii")


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for want of memory since boot."""
    for line in (read_text(Path("/proc/vmstat")) or "").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return None


def ignore_early_warning() -> None:
    """Ignore SIGUSR1: a scheduler signals every process of a job, but means the supervisor.

    Example: ``sbatch --signal=USR1@120``.
    """
    if hasattr(signal, "SIGUSR1"):  # not on Windows
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def die_with_parent() -> None:
    """Make this process end with its parent, and die first when memory runs out (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def adopt_orphans(*, yes: bool) -> bool:
    """Adopt descendants as children when their parents end; tell whether the call worked."""
    return sys.platform == "linux" and _prctl(_PR_SET_CHILD_SUBREAPER, int(yes))


def allow_debuggers(*, yes: bool) -> bool:
    """Let processes of the same user (or only root) read and write this process's memory.

    See prctl(2), PR_SET_DUMPABLE, and ptrace(2); returns whether the kernel agreed.
    """
    return sys.platform == "linux" and _prctl(_PR_SET_DUMPABLE, int(yes))


def give_up_tracing() -> bool:
    """Drop, for good, the right to trace other users' processes; tell whether the drop worked.

    Root has the right outside of containers (CAP_SYS_PTRACE, capabilities(7)), and could use the
    right to write to the memory of processes that allow no debugger. Descendants of this process
    do not get the right back.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # two words each of effective, permitted, inheritable
    if libc.capget(header, sets):
        return False
    for word in range(3):
        sets[word] &= ~(1 << _CAP_SYS_PTRACE)
    libc.prctl(_PR_CAPBSET_DROP, _CAP_SYS_PTRACE, 0, 0, 0)  # fails without CAP_SETPCAP
    return bool(libc.capset(header, sets) == 0)


def _prctl(option: int, value: int) -> bool:
    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


def leave() -> NoReturn:
    """End this process with status 0 as Python does, but let the kernel free its memory.

    The function waits for threads, calls exit handlers and flushes output. Python would then also
    take every module apart: with torch 0.6 s of a core, and a caller waits as long.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the stream is closed, or has no reader any more
            stream.flush()
    os._exit(0)


def return_freed_memory() -> bool:
    """Return to the kernel the memory that this process freed but still holds (glibc only).

    Threads keep freed memory apart: 0.18 GB after making a model of 0.5 GB (measured). Ranks free
    the parts of the model that they made for other ranks.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(trim(0)) if sys.platform == "linux" and trim is not None else False


def keep_freed_memory() -> bool:
    """Let this process keep freed memory instead of returning it to the kernel (glibc only).

    A step frees and allocates every gradient again: 2.9 GB for llama-1.4b in BF16, half a million
    page faults. With memory kept, a step takes 0.74 to 0.87 of the time (4 cores, batch size 1).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if sys.platform != "linux" or mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def package_energy_joules() -> float | None:
    """Return the summed RAPL package counters in joules, None if no counter can be read.

    A counter wraps after hours. A window with a wrap has a negative difference, and callers drop
    the window.
    """
    counters = [read_text(zone / "energy_uj") for zone in _POWERCAP.glob("intel-rapl:[0-9]")]
    values = [int(counter) for counter in counters if counter and counter.isdigit()]
    return sum(values) / 1e6 if values and len(values) == len(counters) else None
