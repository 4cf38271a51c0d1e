"""The class of hardware is what speed depends on; what is not known is not the same."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.records.system import Cpu, Device
from llmb.reproduction import hardware
from llmb.reproduction.hardware import HardwareClass, describe, unlike
from tests import builders

GB = 10**9


def cpu(**changes: Any) -> Cpu:
    values: dict[str, Any] = {
        "model": "Fast CPU 9",
        "architecture": "x86_64",
        "physical_cores": 4,
        "logical_cores": 8,
        "usable_cores": 4,
        "max_frequency_mhz": 3000.0,
    }
    return Cpu(**{**values, **changes})


def card(name: str = "fast:0", model: str | None = "Fast 80GB", size: int | None = 80) -> Device:
    memory = None if size is None else size * GB
    return Device(name=name, description=model, memory_bytes=memory)


def accelerator(*devices: Device, **counts: int) -> HardwareClass:
    return describe("fast:0", cpu(), devices, **counts)


def test_a_class_is_the_same_as_itself_on_a_host_of_another_kind() -> None:
    one = describe("fast:0", cpu(), [card()])
    other = describe("fast:0", cpu(model="Slow CPU", usable_cores=2), [card()])
    assert unlike(one, other) == ()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (accelerator(card(model="Fast 40GB")), "Fast 80GB, Fast 40GB"),
        (accelerator(card(size=40)), "80.0 GB of device memory, 40.0 GB"),
        (accelerator(card(size=None)), "an unknown amount"),
        (accelerator(card(), world_size=8), "1 devices in 1 nodes, 8 in 1"),
        (accelerator(card(), world_size=1, nodes=2), "1 devices in 1 nodes, 1 in 2"),
        (accelerator(card(model=None)), "not known"),
        (accelerator(), "not known"),
        (describe("cpu", cpu(), []), "devices of type fast, of type cpu"),
    ],
)
def test_any_other_device_is_another_class(other: HardwareClass, words: str) -> None:
    assert words in "; ".join(unlike(accelerator(card()), other))


def test_a_driver_that_keeps_a_little_more_memory_does_not_make_another_class() -> None:
    assert unlike(accelerator(card(size=80)), accelerator(card(size=79))) == ()


def test_an_unknown_model_is_not_even_the_same_as_itself() -> None:
    unknown = accelerator(card(model=None))
    assert unlike(unknown, unknown) == ("the model of a device is not known",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "Fast CPU 8"}, "Fast CPU 9, Fast CPU 8"),
        ({"usable_cores": 2}, "4 usable cores, 2"),
        ({"architecture": "arm64"}, "instruction set x86_64, arm64"),
        ({"model": None}, "not known"),
    ],
)
def test_another_processor_or_fewer_cores_are_another_class(
    changes: dict[str, Any], words: str
) -> None:
    one, other = (describe("cpu", each, []) for each in (cpu(), cpu(**changes)))
    assert words in "; ".join(unlike(one, other))


def test_spaces_in_a_name_and_the_clock_of_a_processor_do_not_count() -> None:
    padded = cpu(model="Fast  CPU 9 ", max_frequency_mhz=None)
    assert unlike(describe("cpu", cpu(), []), describe("cpu", padded, [])) == ()


def test_the_device_that_was_used_counts_and_not_its_neighbour() -> None:
    devices = [card("fast:0", "Old"), card("fast:1", "New")]
    assert describe("fast:1", cpu(), devices).model == "New"
    assert describe("fast", cpu(), devices).model == "Old", "without a number: the first"
    assert describe("fast:7", cpu(), devices).model is None


def test_the_class_of_a_record_is_that_of_its_device() -> None:
    found = hardware.of_record(builders.make_record(repeats=1))
    assert (found.kind, found.model, found.devices) == ("fast", "Fast [1]", 1)
    assert str(found) == f"1 x Fast [1], {2**35 / 1e9:.1f} GB"


@pytest.mark.parametrize(("size", "same"), [(95, True), (105, True), (94, False), (106, False)])
def test_memory_may_differ_by_a_twentieth_of_the_larger(size: int, same: bool) -> None:
    found = unlike(accelerator(card(size=100)), accelerator(card(size=size)))
    assert (found == ()) is same
