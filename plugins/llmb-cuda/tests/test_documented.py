"""Devices as described in NVIDIA's documents (``documented.json``): documented, not recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llmb_cuda import plugin
from llmb_cuda.backend import CudaBackend
from llmb_cuda.peaks import _FORMATS, peak

from llmb.config import Refused
from tests.unit.builders_runtime import run_config
from tests.unit.plugin import documents

KNOWN = documents.load(Path(__file__).with_name("documented.json"))
DEVICES: dict[str, dict[str, Any]] = {d["properties"]["name"]: d for d in KNOWN["devices"]}
WHOLE = [name for name, device in DEVICES.items() if "slice_of" not in device]
SLICES = [name for name in DEVICES if name not in WHOLE]
GPU, MIG = "GPU-01234567-89ab-cdef-0123-456789abcdef", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
GB = 10**9
Make = Callable[..., CudaBackend]


class DocumentedNvml:
    """A ``pynvml`` with the documented answers for one device; refuses every other query."""

    def __init__(self, device: dict[str, Any], **more: Any) -> None:
        self.own = MIG if "slice_of" in device else GPU
        memory = SimpleNamespace(total=device["memory_gb"] * GB, free=device["memory_gb"] * GB)
        self.answers: dict[str, dict[str, Any]] = {GPU: {**device["nvml"], **more}, MIG: {}}
        self.answers[self.own]["nvmlDeviceGetMemoryInfo"] = memory
        self.answers[MIG]["nvmlDeviceIsMigDeviceHandle"] = 1
        self.answers[MIG]["nvmlDeviceGetDeviceHandleFromMigDeviceHandle"] = GPU

    def __getattr__(self, name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            if name == "nvmlInit":
                return None
            if name == "nvmlDeviceGetHandleByUUID":
                (uuid,) = arguments
                if uuid != self.own:
                    raise LookupError(uuid)
                return uuid
            key = " ".join(map(str, (name, *arguments[1:])))
            return self.answers[arguments[0]][key]

        return answer


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that drives a documented device, with changed facts."""

    def made(which: str, *, nvml: bool = True, answers: Any = None, **changes: Any) -> CudaBackend:
        device = DEVICES[which]
        library = DocumentedNvml(device, **(answers or {}))
        uuid = library.own.partition("-")[2]
        properties = SimpleNamespace(**{**device["properties"], "uuid": uuid, **changes})
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        for holder, attribute, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "get_device_properties", lambda index: properties),
            (torch.cuda, "get_device_name", lambda index: properties.name),
            (torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda")),
            (torch.accelerator, "device_count", lambda: 1),
            (torch.accelerator, "current_device_index", lambda: 0),
            (torch.accelerator, "set_device_index", lambda index: None),
        ):
            monkeypatch.setattr(holder, attribute, value)
        monkeypatch.setitem(sys.modules, "pynvml", library if nvml else None)
        return CudaBackend("cuda:0")

    return made


def test_every_device_is_documented_and_not_recorded_and_names_its_documents() -> None:
    documents.check(KNOWN)


@pytest.mark.parametrize("precision", _FORMATS)
@pytest.mark.parametrize("name", DEVICES)
def test_the_peak_of_a_documented_device_is_the_dense_one(
    make: Make, name: str, precision: str
) -> None:
    found, printed = make(name).peak_flops(precision), DEVICES[name]["dense_teraflops"][precision]
    rate = None if found is None else found.flops_per_second / 1e12
    assert rate == (None if printed is None else pytest.approx(printed))


def test_sm_count_clock_and_tensor_cores_of_an_a100_give_the_peak_that_is_printed() -> None:
    a100 = DEVICES["NVIDIA A100-SXM4-80GB"]
    sms, mhz = (
        a100["properties"]["multi_processor_count"],
        a100["nvml"]["nvmlDeviceGetMaxClockInfo 1"],
    )
    # 1,024 FP16 multiply-adds a cycle and multiprocessor, two operations each.
    assert sms * mhz * 1e6 * 2048 / 1e12 == pytest.approx(312, rel=1e-3)


@pytest.mark.parametrize("name", SLICES)
def test_a_mig_instance_has_no_peak_even_under_the_name_of_its_gpu(make: Make, name: str) -> None:
    whole = DEVICES[name]["slice_of"]
    instance = make(name, name=whole, multi_processor_count=None)
    assert instance.nvml.is_part
    assert [instance.peak_flops(precision) for precision in _FORMATS] == [None] * 5


@pytest.mark.parametrize("whole", WHOLE)
def test_a_mig_instance_under_its_gpus_name_and_uuid_has_no_peak_and_no_memory_of_the_gpu(
    make: Make, whole: str
) -> None:
    instance = make(whole, answers={"nvmlDeviceGetMigMode": [1, 1]}, multi_processor_count=None)
    assert [instance.peak_flops(precision) for precision in _FORMATS] == [None] * 5
    assert instance.nvml.memory() == (None, None)
    assert "memory_used_bytes" not in instance.telemetry()


@pytest.mark.parametrize("name", SLICES)
def test_without_nvml_a_share_of_a_gpu_is_told_by_its_multiprocessors(
    make: Make, name: str
) -> None:
    whole = DEVICES[DEVICES[name]["slice_of"]]["properties"]["name"]
    assert make(name, nvml=False, name=whole).peak_flops("BF16") is None
    assert make(whole, nvml=False).peak_flops("BF16") is not None


@pytest.mark.parametrize("name", WHOLE)
def test_a_share_of_any_documented_gpu_under_its_name_has_no_peak(make: Make, name: str) -> None:
    count = DEVICES[name]["properties"]["multi_processor_count"]
    whole, share = (make(name, nvml=False, multi_processor_count=n) for n in (count, count // 2))
    assert whole.peak_flops("BF16") is not None
    assert share.peak_flops("BF16") is None


@pytest.mark.parametrize("name", SLICES)
def test_energy_beside_a_mig_instance_is_the_whole_gpus_or_absent(make: Make, name: str) -> None:
    assert make(name).energy() is None  # refused: never 0
    reading = make(name, answers={"nvmlDeviceGetTotalEnergyConsumption": 5000}).energy()
    assert reading is not None
    assert (reading.joules, reading.scope) == (5.0, "package")


@pytest.mark.parametrize("name", DEVICES)
def test_memory_power_limit_clock_and_mig_mode_are_the_documents(make: Make, name: str) -> None:
    device, backend = DEVICES[name], make(name)
    assert backend.nvml.memory()[0] == device["memory_gb"] * GB
    facts, limit = backend.nvml.facts(), device["nvml"].get("nvmlDeviceGetEnforcedPowerLimit")
    assert facts.get("nvidia.power_limit_w") == (None if limit is None else f"{limit / 1e3:g}")
    clock = device["nvml"].get("nvmlDeviceGetMaxClockInfo 1")
    assert facts.get("nvidia.max_sm_clock_mhz") == (None if clock is None else str(clock))
    assert facts["nvidia.mig_mode"] == ("enabled" if name in SLICES else "disabled")


@pytest.mark.parametrize("name", DEVICES)
def test_fp8_is_refused_for_ampere_and_for_nobody_after(make: Make, name: str) -> None:
    make(name)
    options = {option.name: option.default for option in plugin.llmb_options()}
    config = run_config(plugin="cuda", device="cuda:0", plugin_options=options)
    refused = {p.name: p.reason for p in plugin.llmb_precisions(config) if isinstance(p, Refused)}
    lacking = "compute capability" in refused.get("FP8", "")
    assert lacking is name.startswith("NVIDIA A100")
    assert "TF32" not in refused


def test_names_that_begin_alike_are_different_parts() -> None:
    rates = {name: peak(name, "BF16") for name in WHOLE if "H100" in name or "H200" in name}
    assert len({found.source for found in rates.values() if found is not None}) == len(rates) == 5
