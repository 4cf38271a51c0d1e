"""The MI300X as described in AMD's documents (``documented.json``): documented, not recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llmb_rocm.backend import RocmBackend
from llmb_rocm.peaks import _FORMATS

from tests.unit.plugin import documents

KNOWN = documents.load(Path(__file__).with_name("documented.json"))
WHOLE, PART = KNOWN["devices"]
BOTH = pytest.mark.parametrize("device", [WHOLE, PART], ids=["whole", "partition"])
Make = Callable[[dict[str, Any]], RocmBackend]


class DocumentedSmi:
    """An ``amdsmi`` with the documented answers for one device; refuses every other query."""

    AmdSmiInitFlags = SimpleNamespace(INIT_AMD_GPUS="INIT_AMD_GPUS")
    AmdSmiMemoryType = SimpleNamespace(VRAM="VRAM")

    def __init__(self, device: dict[str, Any]) -> None:
        count = device.get("of_partitions", 1)
        self.handles = [f"0000:05:00.{number}" for number in range(count)]
        self.answers = dict(device["amdsmi"])
        self.answers["amdsmi_get_gpu_asic_info"] = {"market_name": device["properties"]["name"]}
        if "memory_gib" in device:
            self.answers["amdsmi_get_gpu_memory_total"] = device["memory_gib"] * 2**30

    def amdsmi_init(self, flag: str) -> None:
        assert flag == "INIT_AMD_GPUS"

    def amdsmi_get_processor_handles(self) -> list[str]:
        return self.handles

    def amdsmi_get_gpu_device_bdf(self, handle: str) -> str:
        return handle

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.answers[name]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that drives a documented device."""

    def made(device: dict[str, Any]) -> RocmBackend:
        address = {"pci_domain_id": 0, "pci_bus_id": 5, "pci_device_id": 0, "uuid": ""}
        properties = SimpleNamespace(**device["properties"], **address)
        monkeypatch.setattr(torch.version, "hip", "7.1.0")
        for holder, attribute, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "get_device_properties", lambda index: properties),
            (torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda")),
            (torch.accelerator, "device_count", lambda: 1),
            (torch.accelerator, "current_device_index", lambda: 0),
            (torch.accelerator, "set_device_index", lambda index: None),
        ):
            monkeypatch.setattr(holder, attribute, value)
        monkeypatch.setitem(sys.modules, "amdsmi", DocumentedSmi(device))
        return RocmBackend("cuda:0")

    return made


def test_every_device_is_documented_and_not_recorded_and_names_its_documents() -> None:
    documents.check(KNOWN)


@BOTH
@pytest.mark.parametrize("precision", _FORMATS)
def test_the_peak_of_a_documented_device_is_the_dense_one_and_a_partition_has_none(
    make: Make, device: dict[str, Any], precision: str
) -> None:
    found, printed = make(device).peak_flops(precision), device["dense_teraflops"][precision]
    rate = None if found is None else found.flops_per_second / 1e12
    assert rate == (None if printed is None else pytest.approx(printed))
    assert found is None or "MI300 Series microarchitecture" in found.source  # it is read, "mi300"


def test_compute_units_and_clock_of_an_mi300x_give_the_peak_that_is_printed() -> None:
    units, mhz = WHOLE["properties"]["multi_processor_count"], WHOLE["peak_engine_clock_mhz"]
    # 2,048 FP16 operations a cycle and compute unit.
    assert units * mhz * 1e6 * 2048 / 1e12 == pytest.approx(1307.4, rel=1e-3)
    assert PART["properties"]["multi_processor_count"] * PART["of_partitions"] == units


@BOTH
def test_architecture_power_cap_and_partition_mode_are_the_documents(
    make: Make, device: dict[str, Any]
) -> None:
    backend = make(device)
    assert backend.architecture == "gfx942"
    facts = backend.smi.facts()
    assert facts["amd.power_cap_w"] == "750"
    assert facts["amd.compute_partition"] == device["amdsmi"]["amdsmi_get_gpu_compute_partition"]


def test_memory_is_the_documents_and_a_partitions_is_not_known(make: Make) -> None:
    assert make(WHOLE).smi.memory()[0] == 192 * 2**30
    assert make(PART).smi.memory() == (None, None)


def test_energy_of_a_partition_is_the_whole_gpus_or_absent(make: Make) -> None:
    assert (make(WHOLE).smi.scope, make(PART).smi.scope) == ("device", "package")
    assert make(PART).energy() is None
