"""The clock of a run: raw monotonic nanoseconds, never slewed by a time daemon such as NTP."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone

#: CLOCK_MONOTONIC_RAW exists on Linux and macOS. The clock is system-wide: stamps of two processes
#: can be compared.
_RAW = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
NAME = "CLOCK_MONOTONIC_RAW" if hasattr(time, "CLOCK_MONOTONIC_RAW") else "CLOCK_MONOTONIC"


def now_ns() -> int:
    """Return raw monotonic time in nanoseconds."""
    return time.clock_gettime_ns(_RAW)


def utc_now() -> datetime:
    """Return the current date and time in UTC, to the second."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def cpu_s() -> float:
    """Return the CPU seconds used by all threads of the current process together."""
    return time.process_time()


def worked_ns(*, on_cpu: bool) -> int:
    """Return nanoseconds of the calling thread's work on a CPU: a stopped process does no work.

    On an accelerator return ``now_ns``: the thread waits while the accelerator works.
    """
    return time.thread_time_ns() if on_cpu else now_ns()


def age_s(pid: int | None = None) -> float:
    """Return the seconds since the start of process ``pid`` (default: the current process).

    By the wall clock, for the eye only: 0 if the clock was set back since, or for a lost process.
    """
    import psutil  # a tenth of a second, which `llmb --help` need not wait

    try:
        return max(0.0, time.time() - psutil.Process(pid or os.getpid()).create_time())
    except psutil.Error:
        return 0.0
