"""The generic plugin: refused without an accelerator; torch's interface faked for the rest."""

from __future__ import annotations

import pytest
import torch

from llmb.errors import UnavailableError
from llmb.plugin.backend import Backend, lacks_of
from llmb.plugin.builtin import generic
from tests.unit.builders_runtime import run_config


def no_accelerator(check_available: bool = False) -> None:
    return None


@pytest.mark.parametrize("device", ["auto", "warp:0"])
def test_without_an_accelerator_the_plugin_is_unavailable_and_says_what_torch_sees(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", no_accelerator)
    with pytest.raises(UnavailableError, match=r"this torch .* sees no accelerator"):
        generic.llmb_backend(run_config(device=device))


def test_without_an_accelerator_no_kernel_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", no_accelerator)
    assert generic.llmb_optimizer_options() == {}


class Accelerator:
    """As much of ``torch.accelerator`` as the plugin uses: two devices of 8 GiB."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, object]] = []

    kind = "privateuseone"

    def current_accelerator(self, check_available: bool = False) -> torch.device:
        return torch.device(self.kind)

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device_index(self) -> int:
        return 1

    def get_memory_info(self, index: int) -> tuple[int, int]:
        return (6 + index, 8)

    def max_memory_allocated(self, index: int) -> int:
        return 5

    def __getattr__(self, name: str):
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    fake = Accelerator()
    names = "current_accelerator is_available device_count current_device_index get_memory_info "
    names += "max_memory_allocated set_device_index synchronize reset_peak_memory_stats"
    for name in names.split():
        monkeypatch.setattr(torch.accelerator, name, getattr(fake, name))
    return fake


@pytest.mark.parametrize(
    ("device", "index"),
    [("auto", 1), ("privateuseone", 1), ("privateuseone:0", 0), ("privateuseone:1", 1)],
)
def test_the_device_that_was_asked_for_is_made_current(
    accelerator: Accelerator, device: str, index: int
) -> None:
    backend = generic.llmb_backend(run_config(device=device))
    assert backend.index == index
    assert backend.device_type == "privateuseone"
    assert accelerator.calls == [("set_device_index", index)]


@pytest.mark.parametrize("index", ["2", "-1", "x", "1.5", "", "01"])
def test_a_device_number_that_does_not_exist_is_refused_with_the_count(
    accelerator: Accelerator, index: str
) -> None:
    with pytest.raises(UnavailableError, match="there are 2 privateuseone devices, numbered from"):
        generic.llmb_backend(run_config(device=f"privateuseone:{index}"))


def test_an_accelerator_of_another_kind_is_refused_naming_both(accelerator: Accelerator) -> None:
    with pytest.raises(UnavailableError, match="sees 'privateuseone', not 'warp:0'"):
        generic.llmb_backend(run_config(device="warp:0"))


@pytest.mark.parametrize(("kind", "lacks"), [("mps", ("float64",)), ("privateuseone", ())])
def test_of_the_devices_that_torch_knows_mps_lacks_float64(
    accelerator: Accelerator, kind: str, lacks: tuple[str, ...]
) -> None:
    accelerator.kind = kind
    backend = generic.llmb_backend(run_config(device=kind))
    assert lacks_of(backend).named() == lacks


def test_it_is_a_backend_on_which_python_runs_ahead(accelerator: Accelerator) -> None:
    backend = generic.llmb_backend(run_config(device="auto"))
    assert isinstance(backend, Backend)
    assert backend.step_clock == "enqueue"
    backend.synchronize()
    assert accelerator.calls[-1] == ("synchronize", 1)


def test_memory_is_that_of_the_chosen_device_and_the_peak_of_torchs_allocator(
    accelerator: Accelerator,
) -> None:
    memory = generic.llmb_backend(run_config(device="privateuseone:0")).memory()
    assert (memory.total_bytes, memory.available_bytes, memory.peak_bytes) == (8, 6, 5)


def test_what_the_device_does_not_tell_is_none(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(index: int) -> None:
        raise NotImplementedError

    for name in ("get_memory_info", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.accelerator, name, not_there)
    backend = generic.llmb_backend(run_config(device="auto"))
    backend.reset_peak_memory()
    memory = backend.memory()
    assert (memory.total_bytes, memory.available_bytes, memory.peak_bytes) == (None, None, None)
    assert backend.energy() is None
    assert backend.peak_flops("BF16") is None


def test_a_peak_of_zero_is_unknown(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda index: 0)
    assert generic.llmb_backend(run_config(device="auto")).memory().peak_bytes is None


def test_every_device_is_listed_by_its_torch_name(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda kind: object())
    devices = generic.llmb_backend(run_config(device="auto")).devices()
    assert [device.name for device in devices] == ["privateuseone:0", "privateuseone:1"]
    assert [device.memory_bytes for device in devices] == [8, 8]


@pytest.mark.parametrize(
    ("listed", "has_kernel", "chosen"),
    [(True, True, True), (True, False, False), (False, True, False), (True, None, False)],
)
def test_the_fused_kernel_is_chosen_where_torch_lists_it_and_the_device_has_it(
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    listed: bool,
    has_kernel: bool | None,
    chosen: bool,
) -> None:
    def has(operator: str, key: str) -> bool:
        assert (operator, key) == ("aten::_fused_adamw_", "PrivateUse1")
        if has_kernel is None:
            raise RuntimeError("this torch has no such function")
        return has_kernel

    devices = ["privateuseone"] if listed else ["other"]
    kernels = torch.utils._foreach_utils
    monkeypatch.setattr(kernels, "_get_fused_kernels_supported_devices", lambda: devices)
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", has)
    assert generic.llmb_optimizer_options() == ({"fused": True} if chosen else {})


def test_tf32_is_not_offered_as_it_is_a_vendors_switch() -> None:
    assert [precision.name for precision in generic.llmb_precisions()] == ["BF16", "FP16", "FP32"]


def test_float32_is_multiplied_in_float32_and_torchs_own_getter_still_answers() -> None:
    # Mixed with torch's newer switches the getter would raise from then on.
    matmul = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        generic.llmb_set_environment(run_config())
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(matmul)
