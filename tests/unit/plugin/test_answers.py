"""A backend is asked with care: what it answers wrongly names plugin, class and method."""

from __future__ import annotations

from typing import Any

import pytest

from llmb.config import BF16, Precision, Refused
from llmb.errors import UnavailableError
from llmb.plugin import EnergyReading, Lacks, Peak
from llmb.plugin.answers import Answers, check_dtypes
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.plugin.faults import PluginFaultError
from llmb.records.system import Device

CALLS = {
    "is_available": (),
    "devices": (),
    "available_bytes": (),
    "check_energy": (),
    "peak_flops": ("BF16",),
    "versions": (),
}
METHODS = {"available_bytes": "memory", "check_energy": "energy"}


def asked(**members: Any) -> Answers:
    """Return a backend of the CPU with ``members``, which is asked for plugin odd."""
    return Answers("odd", type("Acme", (CpuBackend,), members)())


def test_a_sound_backend_is_quoted_as_it_is() -> None:
    sound = asked(
        devices=lambda self: [Device(name="acme:0")],
        energy=lambda self: EnergyReading(joules=1.0, source="counter", scope="device"),
        peak_flops=lambda self, precision: Peak(flops_per_second=1e12, source=precision),
        versions=lambda self: {"driver": 5},
    )
    assert (sound.device_type, sound.step_clock, sound.is_available()) == ("cpu", "host", True)
    assert sound.devices() == (Device(name="acme:0"),)
    assert (sound.available_bytes() or 0) > 0
    assert sound.peak_flops("BF16") == Peak(flops_per_second=1e12, source="BF16")
    assert sound.versions() == {"driver": "5"}
    sound.check_energy()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("error", [KeyError("libacme.so"), SystemExit(2), KeyboardInterrupt()])
def test_whatever_a_backend_raises_is_a_fault_of_its_plugin(
    call: str, error: BaseException
) -> None:
    def fail(self: object, *arguments: object) -> None:
        raise error

    method = METHODS.get(call, call)
    words = f"plugin 'odd': Acme.{method} raised {type(error).__name__}"
    with pytest.raises(PluginFaultError, match=words):
        getattr(asked(**{method: fail}), call)(*CALLS[call])


@pytest.mark.parametrize("call", CALLS)
def test_a_backend_that_says_itself_what_is_wrong_is_quoted_and_not_called_broken(
    call: str,
) -> None:
    def refuse(self: object, *arguments: object) -> None:
        raise UnavailableError("the driver is too old")

    with pytest.raises(UnavailableError, match=r"^the driver is too old$") as caught:
        getattr(asked(**{METHODS.get(call, call): refuse}), call)(*CALLS[call])
    assert not isinstance(caught.value, PluginFaultError)


@pytest.mark.parametrize(
    ("call", "value", "words"),
    [
        ("devices", 1, "devices returned a int, expected Sequence"),
        ("devices", ["acme:0"], "devices returned a str, expected Devices"),
        ("available_bytes", 5, "memory returned a int, expected DeviceMemory"),
        ("available_bytes", None, "memory returned a NoneType, expected DeviceMemory"),
        ("check_energy", 5.0, "energy returned a float, expected EnergyReading or None"),
        ("peak_flops", 1e12, "peak_flops returned a float, expected Peak or None"),
        ("versions", None, "versions returned a NoneType, expected Mapping"),
    ],
)
def test_an_answer_of_another_type_is_a_fault_of_the_plugin(
    call: str, value: object, words: str
) -> None:
    answers = asked(**{METHODS.get(call, call): lambda self, *arguments: value})
    with pytest.raises(PluginFaultError, match=f"plugin 'odd': Acme.{words}"):
        getattr(answers, call)(*CALLS[call])


@pytest.mark.parametrize(
    ("member", "value", "words"),
    [
        ("device_type", None, "device_type is None, expected a string"),
        ("step_clock", "sundial", "step_clock is 'sundial', expected 'host' or 'device' or"),
    ],
)
def test_an_attribute_that_cannot_be_right_is_a_fault_of_the_plugin(
    member: str, value: object, words: str
) -> None:
    with pytest.raises(PluginFaultError, match=f"plugin 'odd': Acme.{words}"):
        asked(**{member: value})


def test_a_format_needs_a_dtype_that_torch_has_unless_it_is_refused() -> None:
    odd = Precision(name="MX5", bits=5, dtype="mxfloat5")
    with pytest.raises(PluginFaultError, match=r"'odd': llmb_precisions returned MX5 .*'mxfloat5'"):
        check_dtypes("odd", [BF16, odd], ["bfloat16"])
    check_dtypes("odd", [BF16, Refused(name="MX5", reason="no")], ["bfloat16"])


def test_a_declaration_of_what_is_lacking_that_is_none_is_a_fault_of_the_plugin() -> None:
    with pytest.raises(PluginFaultError, match=r"plugin 'odd': Acme\.lacks is 'float64', expected"):
        asked(lacks="float64")


def test_free_memory_is_not_asked_for_where_there_are_no_figures() -> None:
    def fail(self: object) -> None:
        raise NotImplementedError

    assert asked(memory=fail, lacks=Lacks(memory_figures=True)).available_bytes() is None
