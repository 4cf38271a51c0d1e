"""Checks of the hooks that only answer, such as llmb_warmup_steps and llmb_telemetry."""

from __future__ import annotations

import statistics

from llmb import clock
from llmb.sdk.report import CheckError, SkipError
from llmb.sdk.subject import Subject

_QUICK_S = 0.05
_READINGS = 5


def warmup_steps(subject: Subject) -> str:
    """Ask twice; the answers must agree."""
    _ = subject.backend  # only a machine with a device is asked
    first, second = (subject.plugin.warmup_steps(subject.config) for _ in range(2))
    if first != second:
        raise CheckError(f"llmb_warmup_steps returned {first} and then {second}")
    return f"{first}"


def describe_system(subject: Subject) -> str:
    """Check that every fact is text."""
    _ = subject.backend  # only with a device
    facts = subject.plugin.describe_system(subject.config)
    for name, value in facts.items():
        if not name.strip() or not value.strip():
            raise CheckError(
                f"llmb_describe_system: {name!r} is {value!r}: leave out what is not known"
            )
    return ", ".join(f"{name} {value}" for name, value in facts.items()) or "none told"


def telemetry(subject: Subject) -> str:
    """Read several times, as fences do."""
    backend, plugin = subject.device, subject.plugin
    times_s, compilations, names = [], [], set()
    for _ in range(_READINGS):
        begin = clock.now_ns()
        values = plugin.telemetry(backend)
        times_s.append((clock.now_ns() - begin) / 1e9)
        names |= {*values}
        compilations.append(values.get("compilations", 0.0))
        if values.get("throttled", 0.0) not in (0.0, 1.0):
            raise CheckError(
                f"throttled is {values['throttled']}: 1 while the device slows down, or 0"
            )
    if not names:
        raise SkipError("the plugin reads none")
    if compilations != sorted(compilations):
        raise CheckError(
            f"compilations went from {compilations}: count them from the process's start"
        )
    median_s = statistics.median(times_s)
    if median_s > _QUICK_S:
        raise CheckError(
            f"llmb_telemetry takes {median_s * 1000:.0f} ms at every fence: read in at most "
            f"{_QUICK_S * 1000:.0f} ms, or from a thread that llmb_set_environment starts"
        )
    return f"{', '.join(sorted(names))} in {median_s * 1000:.2f} ms"
