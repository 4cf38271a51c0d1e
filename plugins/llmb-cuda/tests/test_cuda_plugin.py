"""The hooks with a faked device: torch's answers are faked, no test computes.

`benchmarks/gpu` tests a real GPU; tests/unit/plugin/kit of the repository tests the shared building
blocks in real runs on the CPU.
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from llmb_cuda import plugin

from llmb.config import FP32, Mode, Precision, Refused, RunConfig
from llmb.errors import UnavailableError
from llmb.plugin import Backend
from llmb.plugin.kit import compiling, formats
from llmb.plugin.options import resolve


def config(device: str = "cuda:0", **options: str) -> RunConfig:
    return RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin="cuda",
        plugin_options=resolve("cuda", plugin.llmb_options(), options),
        device=device,
        precision=FP32,
        batch_size=1,
        seed=1,
        warmup_steps=1,
        timed_steps=50,
        repeats=1,
    )


@pytest.fixture(autouse=True)
def _software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_for_compiling", lambda: None)
    monkeypatch.setattr(formats, "version", lambda package: "1.0")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let torch answer like a build for NVIDIA with two devices."""
    device = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", major=9, minor=0, uuid="01234567-89ab-cdef-0123-456789abcdef"
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    for name, answer in {
        "is_available": lambda: True,
        "get_device_properties": lambda index: device,
        "get_device_name": lambda index: device.name,
        "mem_get_info": lambda index: (60 * 10**9, 80 * 10**9),
        "max_memory_allocated": lambda index: 7,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    for name, answer in {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 2,
        "current_device_index": lambda: 0,
        "set_device_index": lambda index: None,
    }.items():
        monkeypatch.setattr(torch.accelerator, name, answer)
    for name in ("get_memory_info", "max_memory_allocated"):
        monkeypatch.delattr(torch.accelerator, name, raising=False)
    return device


def offered(**options: str) -> list[Precision | Refused]:
    return plugin.llmb_precisions(config(**options))


def label(precision: Precision | Refused) -> str:
    if isinstance(precision, Refused):
        return f"no {precision.name}"
    return precision.name if precision.native else f"slow {precision.name}"


def test_a_torch_of_another_vendor_is_refused_with_what_to_install() -> None:
    with pytest.raises(UnavailableError, match=r"not built for .*: install a .* build"):
        plugin.llmb_backend(config())


def test_a_build_that_sees_no_device_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnavailableError, match=r"torch finds no NVIDIA device"):
        plugin.llmb_backend(config())


@pytest.mark.usefixtures("gpu")
def test_an_index_out_of_range_is_refused_with_the_count() -> None:
    with pytest.raises(UnavailableError, match="'cuda:2': there are 2 cuda devices"):
        plugin.llmb_backend(config("cuda:2"))


@pytest.mark.usefixtures("gpu")
def test_the_backend_is_one_and_reads_memory_from_torchs_own_module() -> None:
    backend = plugin.llmb_backend(config("auto"))
    assert isinstance(backend, Backend)
    memory = backend.memory()
    assert (memory.total_bytes, memory.available_bytes) == (80 * 10**9, 60 * 10**9)
    assert memory.peak_bytes == 7
    assert [device.name for device in backend.devices()] == ["cuda:0", "cuda:1"]
    assert backend.step_clock == "enqueue"


def test_the_other_devices_are_described_without_being_started(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = plugin.llmb_backend(config())
    gpu.total_memory = 81 * 10**9
    asked = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", asked.append)
    assert [device.memory_bytes for device in backend.devices()] == [81 * 10**9] * 2
    assert asked == []


@pytest.mark.usefixtures("gpu")
def test_without_the_management_library_nothing_is_claimed_and_the_reason_is_a_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    backend = plugin.llmb_backend(config())
    assert backend.energy() is None
    assert backend.telemetry() == {}
    found = plugin.llmb_backend(config()).versions()
    assert (found["cuda"], found["compute_capability"]) == ("13.0", "9.0")
    assert "nvml" in found, "without NVML the facts say why"


@pytest.mark.usefixtures("gpu")
def test_a_torch_without_distributed_drives_the_device_and_no_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    for name in ("Backend", "is_nccl_available"):
        monkeypatch.delattr(torch.distributed, name)
    backend = plugin.llmb_backend(config())
    assert backend.distributed_backend is None
    assert "nccl" not in backend.versions()


@pytest.mark.parametrize(
    ("capability", "labels"),
    [
        ((9, 0), ["BF16", "FP16", "TF32", "FP32", "FP8"]),
        ((8, 9), ["BF16", "FP16", "TF32", "FP32", "FP8"]),
        ((8, 0), ["BF16", "FP16", "TF32", "FP32", "no FP8"]),
        ((7, 0), ["FP16", "slow BF16", "no TF32", "FP32", "no FP8"]),
    ],
)
def test_formats_are_those_the_hardware_multiplies(
    gpu: SimpleNamespace, capability: object, labels: list[str]
) -> None:
    gpu.major, gpu.minor = capability
    assert [label(precision) for precision in offered()] == labels


def test_a_format_the_hardware_lacks_is_refused_by_name(gpu: SimpleNamespace) -> None:
    gpu.major, gpu.minor = 8, 0
    reasons = {p.name: p.reason for p in offered() if isinstance(p, Refused)}
    assert reasons["FP8"] == ("NVIDIA H100 80GB HBM3 has compute capability 8.0, FP8 needs 8.9")


@pytest.mark.usefixtures("gpu")
def test_transformer_engine_and_compile_do_not_go_together() -> None:
    (refused,) = (p for p in offered(fp8="transformer-engine") if isinstance(p, Refused))
    assert "add -O compile=none" in refused.reason
    eager = offered(fp8="transformer-engine", compile="none")
    assert "FP8" in [label(precision) for precision in eager]


@pytest.mark.usefixtures("gpu")
def test_a_known_part_has_a_peak_with_its_source_and_an_unknown_one_none(
    gpu: SimpleNamespace,
) -> None:
    peak = plugin.llmb_backend(config()).peak_flops("BF16")
    assert peak is not None
    assert peak.source
    gpu.name = "NVIDIA Unheard-of"
    assert plugin.llmb_backend(config()).peak_flops("BF16") is None


def test_the_package_imports_only_the_public_door_and_no_sister() -> None:
    code = "import sys, llmb_cuda.plugin; print([m for m in sys.modules if m.startswith('llmb')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sister = "llmb_rocm"
    assert "llmb_cuda.plugin" in done.stdout
    for room in (
        sister,
        "llmb.processes.worker",
        "llmb.supervisor",
        "llmb.wire",
        "llmb.audit",
        "llmb.cli",
    ):
        assert room not in done.stdout
