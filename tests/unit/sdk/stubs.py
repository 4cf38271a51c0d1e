"""A backend, a plugin and a subject made of plain values, for checks that look at answers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.config import BF16, FP32
from llmb.plugin import Device, DeviceMemory
from llmb.sdk.report import CheckError
from tests.unit.builders_runtime import TINY, run_config


class StubBackend:
    """The host, with any answer replaced."""

    device_type = "cpu"
    step_clock = "host"
    distributed_backend = None

    def __init__(self, **answers: Any) -> None:
        for name, answer in answers.items():
            setattr(self, name, answer)

    def is_available(self) -> bool:
        return True

    def devices(self) -> tuple[Device, ...]:
        return (Device(name="cpu"),)

    def synchronize(self) -> None:
        pass

    def step_begin(self) -> None:
        pass

    def step_end(self) -> None:
        pass

    def memory(self) -> DeviceMemory:
        return DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)

    def reset_peak_memory(self) -> None:
        pass

    def energy(self) -> None:
        return None

    def peak_flops(self, precision: str) -> None:
        return None

    def versions(self) -> dict[str, str]:
        return {}


def subject(**parts: Any) -> Any:
    """Return what a check looks at; ``answers`` are a backend's, everything else a plugin's."""
    backend = StubBackend(**parts.pop("answers", {}))
    hooks: dict[str, Any] = {
        "options": lambda: (),
        "patches": lambda: (),
        "native_libraries": lambda: (),
        "precisions": lambda config: (BF16, FP32),
        "environment_variables": lambda config: {},
        "warmup_steps": lambda config: 1,
        "describe_system": lambda config: {},
        "telemetry": lambda backend: {},
        "parameter_map": lambda model: None,
    }
    config = run_config(shape_overrides=TINY, batch_size=2)
    run_phases = {"backend": backend, "device": backend, "config": config}
    for name in ("order", "processed", "trained", "watch", "batch"):
        if name in parts:
            run_phases[name] = parts.pop(name)
    return SimpleNamespace(plugin=SimpleNamespace(**{**hooks, **parts}), **run_phases)


def in_turn(*values: Any) -> Callable[..., Any]:
    """Return a function that returns the next of ``values`` each time, the last for ever."""
    left: Iterator[Any] = iter(values)
    latest = [values[0]]

    def answer(*arguments: Any) -> Any:
        latest[0] = next(left, latest[0])
        return latest[0]

    return answer


def fails(check: Callable[[Any], object], looked_at: Any, *words: str) -> None:
    """Assert that ``check`` fails and says ``words``."""
    with pytest.raises(CheckError) as caught:
        check(looked_at)
    for word in words:
        assert word in str(caught.value)
