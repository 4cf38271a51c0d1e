"""A backend's statements on itself and its devices, before any computation."""

from __future__ import annotations

import math
from typing import get_args

from llmb.plugin import Device, Peak
from llmb.records.run_record import StepClock
from llmb.sdk.checks import precisions
from llmb.sdk.report import CheckError
from llmb.sdk.subject import Subject

#: A format that no device has: the peak of an unknown format must be None, not an error.
_UNHEARD_OF = "FP1"


def describes_itself(subject: Subject) -> str:
    """Check device type, step clock and collectives."""
    backend = subject.backend
    device_type: object = backend.device_type
    clock: object = backend.step_clock
    collectives: object = backend.distributed_backend
    if not isinstance(device_type, str) or not device_type or ":" in device_type:
        raise CheckError(
            f"device_type is {device_type!r}: it is the device string before the colon"
        )
    if clock not in get_args(StepClock):
        raise CheckError(f"step_clock is {clock!r}: choose one of {', '.join(get_args(StepClock))}")
    if not (collectives is None or (isinstance(collectives, str) and collectives)):
        raise CheckError(
            f"distributed_backend is {collectives!r}: use torch.distributed's name or None"
        )
    return f"{device_type}, step clock {clock}, collectives {collectives or 'none'}"


def is_available(subject: Subject) -> None:
    """Ask twice; the answer must be True."""
    for _ in range(2):
        answer: object = subject.backend.is_available()
        if answer is not True:
            raise CheckError(f"is_available() returned {answer!r} for a device that was offered")


def devices(subject: Subject) -> str:
    """Check every device: type, name and memory."""
    backend = subject.backend
    found: object = backend.devices()
    if not isinstance(found, tuple) or not found:
        raise CheckError(f"devices() returned {found!r}: expected a tuple of at least one Device")
    for device in found:
        if not isinstance(device, Device):
            raise CheckError(
                f"devices() holds a {type(device).__name__}: expected llmb.plugin.Device"
            )
        if device.name.partition(":")[0] != backend.device_type:
            raise CheckError(
                f"device {device.name!r} is none of {backend.device_type!r}: rename it"
            )
        if device.memory_bytes is not None and device.memory_bytes <= 0:
            raise CheckError(
                f"device {device.name!r} has {device.memory_bytes} bytes of memory: "
                "what is not known is None"
            )
    names = [device.name for device in found]
    if len({*names}) < len(names):
        raise CheckError(f"devices() names two devices alike: {', '.join(names)}")
    return ", ".join(names)


def versions(subject: Subject) -> str:
    """Check that every name and version is text."""
    found: object = subject.backend.versions()
    if not isinstance(found, dict):
        raise CheckError(f"versions() returned a {type(found).__name__}: expected a dict")
    for name, version in found.items():
        if not isinstance(name, str) or not isinstance(version, str):
            raise CheckError(f"versions() holds {name!r}: {version!r}: both must be text")
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "none told"


def peak_flops(subject: Subject) -> str:
    """Ask for the peak of every offered format, and of a format that does not exist."""
    backend = subject.backend
    known = []
    for name in [*(precision.name for precision in precisions.offered(subject)), _UNHEARD_OF]:
        peak: object = backend.peak_flops(name)
        if peak is None:
            continue
        if not isinstance(peak, Peak):
            raise CheckError(
                f"peak_flops({name!r}) returned a {type(peak).__name__}: expected Peak"
            )
        if name == _UNHEARD_OF:
            raise CheckError(f"peak_flops({name!r}) knows a peak of a format that does not exist")
        if not math.isfinite(peak.flops_per_second) or peak.flops_per_second <= 0:
            raise CheckError(f"the peak of {name} is {peak.flops_per_second}: unknown is None")
        if not peak.source.strip():
            raise CheckError(
                f"the peak of {name} has no source: say where the datasheet can be found"
            )
        known.append(f"{name} {peak.flops_per_second / 1e12:.1f} TFLOP/s")
    return ", ".join(known) or "none known"
