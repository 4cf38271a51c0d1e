"""The CPU plugin: its backend, formats, threads and optimizer kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llmb.plugin.backend import Backend
from llmb.plugin.builtin import cpu, host
from tests.unit.builders_runtime import run_config


@pytest.fixture
def backend() -> cpu.CpuBackend:
    return cpu.llmb_backend(run_config())


def test_the_cpu_is_a_backend_that_is_always_there_and_works_as_python_calls_it(
    backend: cpu.CpuBackend,
) -> None:
    assert isinstance(backend, Backend)
    assert backend.is_available()
    assert (backend.device_type, backend.step_clock) == ("cpu", "host")
    assert [device.name for device in backend.devices()] == ["cpu"]


def test_no_datasheet_peak_is_claimed(backend: cpu.CpuBackend) -> None:
    assert backend.peak_flops("BF16") is None


def test_memory_is_the_hosts(backend: cpu.CpuBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "memory_limit_bytes", lambda: 3)
    monkeypatch.setattr(host, "available_memory_bytes", lambda: 2)
    monkeypatch.setattr(host, "peak_resident_bytes", lambda: 1)
    memory = backend.memory()
    assert (memory.total_bytes, memory.available_bytes, memory.peak_bytes) == (3, 2, 1)
    assert backend.devices()[0].memory_bytes == 3


def test_energy_is_the_package_counter_or_not_measured(
    backend: cpu.CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "package_energy_joules", lambda: 12.5)
    reading = backend.energy()
    assert reading is not None
    assert (reading.joules, reading.source, reading.scope) == (12.5, "counter", "package")
    monkeypatch.setattr(host, "package_energy_joules", lambda: None)
    assert backend.energy() is None


def test_threads_are_the_option_or_the_users_variable_or_one_per_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def threads(option: int) -> str:
        config = run_config(plugin_options={"threads": option})
        return cpu.llmb_environment_variables(config)["OMP_NUM_THREADS"]

    monkeypatch.setattr(host, "compute_threads", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (threads(2), threads(0)) == ("2", "3")
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads(0) == "5"


@pytest.mark.parametrize(
    ("capabilities", "order", "native"),
    [
        ({"avx512_bf16": True, "amx_fp16": False}, ["BF16", "FP32", "FP16"], {"BF16", "FP32"}),
        ({"avx512_bf16": False}, ["FP32", "BF16", "FP16"], {"FP32"}),
        ({"amx_bf16": True, "amx_fp16": True}, ["BF16", "FP32", "FP16"], {"BF16", "FP32", "FP16"}),
        ({"bf16_name": "yes"}, ["FP32", "BF16", "FP16"], {"FP32"}),
    ],
)
def test_native_formats_come_first_and_emulated_ones_are_labelled(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, object],
    order: list[str],
    native: set[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    offered = cpu.llmb_precisions()
    assert [precision.name for precision in offered] == order
    assert {precision.name for precision in offered if precision.native} == native


def test_the_kernel_of_adamw_is_the_fused_one() -> None:
    assert cpu.llmb_optimizer_options() == {"fused": True}


@pytest.mark.parametrize("keep", [True, False])
def test_post_processing_leaves_weights_alone_and_keeps_memory_only_if_asked(
    monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(host, "keep_freed_memory", lambda: calls.append(True))
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    config = run_config(plugin_options={"keep_memory": keep, "written_attention": not keep})
    assert cpu.llmb_post_process_model(model, config) is model
    assert torch.equal(model.weight, before)
    assert calls == [True] * keep


def test_every_option_has_a_default_of_its_type_and_a_help_text() -> None:
    types = {"bool": bool, "int": int}
    for option in cpu.llmb_options():
        assert type(option.default) is types[option.type]
        assert option.help
