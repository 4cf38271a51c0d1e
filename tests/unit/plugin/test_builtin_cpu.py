"""The CPU plugin: its backend, formats, threads and optimizer kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llmb.config import BF16
from llmb.plugin.backend import Backend
from llmb.plugin.builtin import cpu, host
from llmb.plugin.builtin.wide import WideLinear
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


WIDE, NATIVE = "wide", "native"


@pytest.mark.parametrize(
    ("bf16", "fp16", "option", "offered"),
    [
        (NATIVE, WIDE, "auto", ["BF16 native", "FP32 native", "FP16 FP32"]),
        (WIDE, WIDE, "auto", ["FP32 native", "BF16 FP32", "FP16 FP32"]),
        (NATIVE, NATIVE, "auto", ["BF16 native", "FP32 native", "FP16 native"]),
        (NATIVE, WIDE, "wide", ["FP32 native", "BF16 FP32", "FP16 FP32"]),
        (NATIVE, WIDE, "native", ["BF16 native", "FP32 native", "FP16 slow"]),
        (WIDE, WIDE, "native", ["FP32 native", "BF16 slow", "FP16 slow"]),
    ],
)
def test_native_formats_come_first_and_the_others_widen_their_products_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, bf16: str, fp16: str, option: str, offered: list[str]
) -> None:
    faster = {torch.bfloat16: bf16, torch.float16: fp16}
    monkeypatch.setattr(cpu, "faster_way", faster.__getitem__)
    found = cpu.llmb_precisions(run_config(plugin_options={"products": option}))
    how = [p.products or ("native" if p.native else "slow") for p in found]
    assert [f"{p.name} {way}" for p, way in zip(found, how, strict=True)] == offered
    assert [p.is_slow for p in found] == [way == "slow" for way in how]


def test_only_a_run_whose_precision_says_so_has_its_products_widened() -> None:
    options = {"keep_memory": False, "written_attention": False}
    for products, kind in ((None, nn.Linear), ("FP32", WideLinear)):
        precision = BF16.model_copy(update={"native": products is None, "products": products})
        config = run_config(precision=precision, plugin_options=options)
        model = nn.Sequential(nn.Linear(2, 2))
        assert type(cpu.llmb_post_process_model(model, config)[0]) is kind


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
    types = {"bool": bool, "int": int, "str": str}
    for option in cpu.llmb_options():
        assert type(option.default) is types[option.type]
        assert option.help
