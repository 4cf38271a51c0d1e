"""What a backend says that its device lacks, in the words of today and of older packages."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.plugin import DeviceMemory, Lacks
from llmb.plugin.backend import is_lazy, lacks_of, memory_of
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.plugin.faults import PluginFaultError


def backend(**members: Any) -> CpuBackend:
    made: CpuBackend = type("Acme", (CpuBackend,), members)()
    return made


def test_a_backend_that_says_nothing_lacks_nothing() -> None:
    assert lacks_of(backend()) == lacks_of(backend(lacks=None)) == Lacks()
    assert not is_lazy(backend())


def test_what_it_lacks_may_depend_on_the_device_it_finds() -> None:
    lacks = property(lambda self: Lacks(float64=True, memory_figures=True))
    assert lacks_of(backend(lacks=lacks)) == Lacks(float64=True, memory_figures=True)


def test_lazy_is_an_older_word_for_no_eager_kernels() -> None:
    assert lacks_of(backend(lazy=True, lacks=Lacks(float64=True))) == Lacks(
        float64=True, eager_kernels=True
    )
    assert is_lazy(backend(lazy=True, device_type="xla"))
    assert is_lazy(backend(lacks=Lacks(eager_kernels=True), device_type="xla"))


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu", "mps"])
def test_a_worker_on_a_device_that_runs_each_call_records_no_step(device: str) -> None:
    """The offer of the same backend may have said otherwise."""
    with pytest.raises(PluginFaultError, match=f"torch's own kernels on {device} run when called"):
        is_lazy(backend(lazy=True, device_type=device))


@pytest.mark.parametrize("lacks", [True, {"float64": True}, ["float64"], "float64"])
def test_a_declaration_of_another_type_is_refused(lacks: object) -> None:
    with pytest.raises(TypeError, match=r"lacks is .*, expected a llmb\.plugin\.Lacks"):
        lacks_of(backend(lacks=lacks))


def test_memory_without_figures_is_never_asked_for() -> None:
    def broken(self: object) -> DeviceMemory:
        raise NotImplementedError("no figures")

    told = memory_of(backend(memory=broken, lacks=Lacks(memory_figures=True)))
    assert told == DeviceMemory(total_bytes=None, available_bytes=None, peak_bytes=None)
    assert memory_of(backend()).total_bytes
    with pytest.raises(NotImplementedError):
        memory_of(backend(memory=broken))
