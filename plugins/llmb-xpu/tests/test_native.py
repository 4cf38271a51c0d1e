"""The GPU path. CI has no Intel GPU: the tests fake torch's two interfaces to a GPU."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llmb_xpu import compiled as compiled_blocks
from llmb_xpu import extension, hwmon, native, plugin
from torch import nn

from llmb.config import BF16, FP32, TF32, Mode, Precision, Refused, RunConfig
from llmb.errors import UnavailableError, UsageError
from llmb.plugin import Backend
from llmb.plugin.kit import compiling
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape

MATRIX = "has_subgroup_matrix_multiply_accumulate"
MAX_1550_TILE = {
    "name": "Intel(R) Data Center GPU Max 1550",
    "driver_version": "1.6.33578",
    "platform_name": "Intel(R) oneAPI Unified Runtime over Level-Zero",
    "gpu_eu_count": 512,
    "max_compute_units": 512,
    "has_fp16": True,
    "has_bfloat16_conversions": True,
    MATRIX: True,
    f"{MATRIX}_tensor_float32": True,
}


def config(device: str = "xpu", precision: Precision = BF16, **options: Any) -> RunConfig:
    defaults = {option.name: option.default for option in plugin.llmb_options()}
    return RunConfig(
        workload="llama-1.4b",
        mode=Mode.TRAIN,
        plugin="xpu",
        plugin_options={**defaults, **options},
        device=device,
        precision=precision,
        batch_size=1,
        seed=7,
        warmup_steps=1,
        timed_steps=50,
        repeats=1,
    )


class Gpus:
    """As much of ``torch.xpu`` and ``torch.accelerator`` as torch 2.8 has: GPUs of 8 GiB."""

    def __init__(self, properties: Mapping[str, object], count: int) -> None:
        self.properties = SimpleNamespace(**properties)
        self.count, self.chosen, self.synchronized = count, None, []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        xpu, accelerator = torch.xpu, torch.accelerator
        for holder, name, fake in (
            (xpu, "is_available", lambda: True),
            (xpu, "device_count", lambda: self.count),
            (xpu, "get_device_properties", lambda device=None: self.properties),
            (xpu, "get_device_name", lambda device=None: self.properties.name),
            (xpu, "mem_get_info", lambda device=None: (6 << 30, 8 << 30)),
            (xpu, "max_memory_allocated", lambda device=None: 5 << 30),
            (accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu")),
            (accelerator, "is_available", lambda: True),
            (accelerator, "device_count", lambda: self.count),
            (accelerator, "current_device_index", lambda: 0),
            (accelerator, "set_device_index", lambda index: setattr(self, "chosen", index)),
            (accelerator, "synchronize", self.synchronized.append),
        ):
            monkeypatch.setattr(holder, name, fake)
        for name in ("get_memory_info", "max_memory_allocated"):
            monkeypatch.delattr(accelerator, name, raising=False)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Gpus:
    found = Gpus(MAX_1550_TILE, 2)
    found.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "intel_extension_for_pytorch", raising=False)
    return found


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("xpu", 0), ("xpu:1", 1)])
def test_a_gpu_is_driven_natively_wherever_there_is_one(
    gpus: Gpus, device: str, index: int
) -> None:
    backend = plugin.llmb_backend(config(device))
    assert isinstance(backend, Backend)
    assert (backend.device_type, backend.index, gpus.chosen) == ("xpu", index, index)
    assert backend.step_clock == "enqueue"
    backend.synchronize()
    assert gpus.synchronized == [index]


def test_devices_and_memory_are_read_from_torchs_own_module(gpus: Gpus) -> None:
    backend = plugin.llmb_backend(config("xpu"))
    assert [device.name for device in backend.devices()] == ["xpu:0", "xpu:1"]
    assert {device.description for device in backend.devices()} == {MAX_1550_TILE["name"]}
    memory = backend.memory()
    assert (memory.available_bytes, memory.total_bytes) == (6 << 30, 8 << 30)
    assert memory.peak_bytes == 5 << 30


def test_an_index_out_of_range_is_refused_with_the_number_of_devices(gpus: Gpus) -> None:
    with pytest.raises(UnavailableError, match="'xpu:2': there are 2 xpu devices"):
        plugin.llmb_backend(config("xpu:2"))


def test_the_extension_does_not_go_with_a_gpu(gpus: Gpus) -> None:
    with pytest.raises(UsageError, match="--device cpu"):
        plugin.llmb_backend(config("xpu", extension="on"))


def test_asking_for_the_extension_means_the_cpu_even_beside_a_gpu(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extension, "fault", lambda: None)
    assert plugin.llmb_backend(config("auto", extension="on")).device_type == "cpu"


def test_driver_and_units_are_in_the_record(gpus: Gpus) -> None:
    assert plugin.llmb_backend(config()).versions()["xpu_driver"] == "1.6.33578"
    assert plugin.llmb_describe_system(config())["xpu_gpu_eu_count"] == "512"


def test_half_a_card_has_half_its_published_peak_with_the_source(gpus: Gpus) -> None:
    peak = plugin.llmb_backend(config()).peak_flops("BF16")
    assert peak is not None
    assert peak.flops_per_second == 416e12
    assert "Stampede3" in peak.source


def offered(found: list[Precision | Refused]) -> tuple[list[str], dict[str, str]]:
    return (
        [p.name for p in found if isinstance(p, Precision)],
        {p.name: p.reason for p in found if isinstance(p, Refused)},
    )


def test_formats_are_the_gpus_and_fp8_is_refused(gpus: Gpus) -> None:
    names, refused = offered(plugin.llmb_precisions(config()))
    assert names == ["BF16", "FP16", "TF32", "FP32"]
    assert set(refused) == {"FP8"}


def test_tf32_is_refused_where_the_matrix_engines_do_not_take_it(gpus: Gpus) -> None:
    setattr(gpus.properties, f"{MATRIX}_tensor_float32", False)
    names, refused = offered(plugin.llmb_precisions(config()))
    assert "TF32" not in names
    assert "TF32" in refused["TF32"]


def test_bf16_that_the_gpu_only_emulates_is_not_native(gpus: Gpus) -> None:
    gpus.properties.has_bfloat16_conversions = False
    (bf16,) = (p for p in plugin.llmb_precisions(config()) if p.name == "BF16")
    assert not bf16.native


@pytest.mark.parametrize(("precision", "allowed"), [(TF32, True), (FP32, False), (BF16, False)])
def test_only_a_run_declared_in_tf32_lets_float32_products_use_it(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch, precision: Precision, allowed: bool
) -> None:
    set_to: list[object] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    monkeypatch.setattr(torch.backends, "mkldnn", SimpleNamespace(allow_tf32=None))
    plugin.llmb_set_environment(config(precision=precision))
    assert set_to == ["high" if allowed else "highest"]
    assert torch.backends.mkldnn.allow_tf32 is allowed


class TwoLayers(nn.Module):
    """A model of two blocks; the head, and parts of two classes, are no blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": nn.Linear(4, 4), "1": nn.Linear(4, 4)})
        self.parts = nn.ModuleDict({"norm": nn.LayerNorm(4), "gate": nn.Linear(4, 4)})
        self.head = nn.Linear(4, 4)


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Return a function that adds or removes triton; the C compiler is present."""
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(compiling, "_python_header", lambda: Path(__file__))
    there = compiling.find_spec

    def installed(found: bool) -> None:
        def find(name: str) -> object:
            return there(name) if name != "triton" else ModuleSpec(name, None) if found else None

        monkeypatch.setattr(compiling, "find_spec", find)

    return installed


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[nn.Module, object]]:
    """Record the compiled modules and modes without compiling."""
    found: list[tuple[nn.Module, object]] = []
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **given: found.append((self, given["mode"]))
    )
    return found


@pytest.mark.parametrize("device", ["xpu", "xpu:1"])
def test_on_a_gpu_every_block_is_compiled_where_triton_is_found(
    gpus: Gpus, triton: Callable[[bool], None], compiled: list[Any], device: str
) -> None:
    triton(True)
    model, run = TwoLayers(), config(device)
    assert plugin.llmb_post_process_model(model, run) is model
    assert compiled == [(block, None) for block in model.layers.values()]
    assert plugin.llmb_warmup_steps(run) > 1
    assert plugin.llmb_describe_system(run)["xpu_compile"] == "blocks"


@pytest.mark.parametrize(
    ("found", "changes", "options"),
    [
        (False, {}, {}),
        (True, {}, {"compile": "none"}),
        (True, {"executor": "inductor"}, {}),
        (True, {"executor": "inductor"}, {"compile": "blocks"}),
        (True, {"dynamic": True}, {}),
        (True, {"mode": Mode.GENERATE}, {}),
        (True, {"device": "cpu"}, {}),
    ],
    ids=lambda value: str(value),
)
def test_no_block_is_compiled_without_triton_or_where_something_speaks_against_it(
    gpus: Gpus,
    triton: Callable[[bool], None],
    compiled: list[Any],
    found: bool,
    changes: dict[str, Any],
    options: dict[str, str],
) -> None:
    triton(found)
    run = config(**options).model_copy(update=changes)
    assert compiled_blocks.chosen(run) == "none"
    assert compiled_blocks.post_process(model := TwoLayers(), run) is model
    assert compiled == []
    assert (plugin.llmb_warmup_steps(run) == 1) is (run.executor == "eager")


@pytest.mark.parametrize(
    ("asked", "mode"), [("default", None), ("max-autotune-no-cudagraphs",) * 2]
)
def test_a_mode_that_is_named_compiles_the_whole_model(
    gpus: Gpus, triton: Callable[[bool], None], compiled: list[Any], asked: str, mode: str | None
) -> None:
    triton(True)
    model, run = TwoLayers(), config(compile=asked)
    assert plugin.llmb_post_process_model(model, run) is model
    assert compiled == [(model, mode)]
    assert plugin.llmb_warmup_steps(run) > 1


def test_all_blocks_of_a_model_share_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        programs.append(graph)
        return graph.forward

    shape = LlamaShape(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        sequence_length=8,
    )
    model = build(shape, 3, torch.float32)
    ids = torch.arange(16).view(2, 8)
    with torch.no_grad():
        before = model(ids, labels=ids)
    real = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, mode, dynamic: real(self, backend=backend)
    )
    names = [name for name, _ in model.named_parameters()]
    compiled_blocks.post_process(model, config(compile="blocks"))
    with torch.no_grad():
        assert torch.equal(model(ids, labels=ids), before)
    assert len(programs) == 1
    assert [name for name, _ in model.named_parameters()] == names


def test_compiling_without_a_compiler_is_refused_with_what_is_missing(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "a C compiler"
    monkeypatch.setattr(plugin.compiling, "missing_for_compiling", lambda: missing)
    with pytest.raises(UnavailableError, match=missing):
        plugin.llmb_backend(config(compile="default"))


def test_gauges_are_read_where_torch_has_them_and_left_out_where_not(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_permission(device: object = None) -> float:
        raise RuntimeError("not available")

    monkeypatch.setattr(torch.xpu, "clock_rate", lambda device=None: 1550.0, raising=False)
    monkeypatch.setattr(torch.xpu, "temperature", no_permission, raising=False)
    assert plugin.llmb_telemetry() == {"clock_mhz": 1550.0}


def test_nothing_is_declared_as_replaced_where_the_extension_was_not_imported(gpus: Gpus) -> None:
    assert not extension.is_loaded()
    assert plugin.llmb_patches() == []
    assert plugin.llmb_environment_variables(config()) == {}


def test_energy_of_one_card_among_several_devices_is_not_guessed(
    gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(hwmon, "energy", asked.append)
    assert native.XpuBackend("xpu").energy() is None
    assert asked == [2]
