"""A snapshot shows what a plugin changed in torch and in the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from llmb.observe import settings


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    matmul = torch.get_float32_matmul_precision()
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    every, product = torch.backends.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    fast = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = fast
    torch.backends.mkldnn.matmul.fp32_precision = product
    torch.backends.fp32_precision = every
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)


def changes(before: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    after = settings.snapshot()
    return {
        name: (before.get(name), after.get(name))
        for name in {*before, *after}
        if before.get(name) != after.get(name)
    }


def test_two_snapshots_with_nothing_in_between_are_equal() -> None:
    assert settings.snapshot() == settings.snapshot()


def test_every_value_is_text_and_no_getter_of_torch_is_missing_altogether() -> None:
    found = settings.snapshot()
    assert all(isinstance(value, str) for value in found.values())
    assert any(name.startswith("torch._C._get_") for name in found)
    assert any(name.startswith("torch.backends.") for name in found)


def test_a_changed_product_precision_is_seen() -> None:
    torch.set_float32_matmul_precision("highest")
    before = settings.snapshot()
    torch.set_float32_matmul_precision("medium")
    assert changes(before)["torch.float32_matmul_precision"] == ("highest", "medium")


def test_a_changed_default_type_and_thread_count_are_seen() -> None:
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(2)
    before = settings.snapshot()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    seen = changes(before)
    assert seen["torch.default_dtype"] == ("torch.float32", "torch.float64")
    assert seen["torch.num_threads"] == ("2", "1")


def test_a_switch_behind_a_getter_of_torch_is_seen() -> None:
    before_value = torch.are_deterministic_algorithms_enabled()
    before = settings.snapshot()
    try:
        torch.use_deterministic_algorithms(not before_value, warn_only=True)
        assert any("determin" in name for name in changes(before))
    finally:
        torch.use_deterministic_algorithms(before_value)


def test_torchs_new_precision_switch_is_seen_and_does_not_end_the_run() -> None:
    before = settings.snapshot()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    seen = changes(before)["torch.backends.mkldnn.matmul.fp32_precision"]
    assert seen[0] != seen[1] == "bf16"


def test_torchs_precision_for_every_backend_is_seen() -> None:
    torch.backends.fp32_precision = "none"
    before = settings.snapshot()
    torch.backends.fp32_precision = "ieee"
    assert changes(before)["torch.backends.fp32_precision"] == ("none", "ieee")


def test_a_backend_that_is_switched_off_is_seen() -> None:
    before = settings.snapshot()
    torch.backends.mkldnn.enabled = not torch.backends.mkldnn.enabled
    assert changes(before)


def test_a_changed_variable_is_seen_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_TEST_ONLY", raising=False)
    before = settings.snapshot()
    monkeypatch.setenv("TORCH_TEST_ONLY", "1")
    assert changes(before) == {"environment.TORCH_TEST_ONLY": (None, "1")}


def test_a_secret_variable_is_not_in_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HUB_TOKEN", "hunter2")
    assert "hunter2" not in settings.snapshot().values()


def test_a_getter_that_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("no such device")

    monkeypatch.setattr(torch._C, "_get_test_enabled", broken, raising=False)
    assert "torch._C._get_test_enabled" not in settings.snapshot()
    monkeypatch.setattr(torch._C, "_get_test_enabled", lambda: True)
    assert settings.snapshot()["torch._C._get_test_enabled"] == "True"


def test_a_new_backend_of_torch_shows_its_plain_switches_without_being_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys
    from types import ModuleType

    module = ModuleType("torch.backends.warp")
    module.allow_shortcuts, module._hidden, module.function = True, True, len
    monkeypatch.setitem(sys.modules, "torch.backends.warp", module)
    found = settings.snapshot()
    assert found["torch.backends.warp.allow_shortcuts"] == "True"
    assert "torch.backends.warp._hidden" not in found
    assert "torch.backends.warp.function" not in found


def test_no_device_is_initialised_by_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin sets what its device reads when it starts after the first snapshot."""
    asked: list[str] = []
    for holder, name in [
        *((torch.cuda, name) for name in ("_lazy_init", "init", "current_device", "device_count")),
        *((torch.xpu, name) for name in ("_lazy_init", "init", "current_device")),
        *((torch.accelerator, name) for name in ("current_device_index", "synchronize")),
    ]:
        monkeypatch.setattr(holder, name, lambda *_, name=name: asked.append(name) or 0)
    settings.snapshot()
    assert asked == []
