"""Checks of what hooks and backends answer: each wrong answer is named, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb.config import BF16, FP32, TF32, Precision, Refused
from llmb.errors import UnavailableError
from llmb.formats import Element, Format
from llmb.plugin import DeclaredHelper, DeclaredPatch, Device, NativeLibrary, Peak, PluginOption
from llmb.sdk.checks import answers, backend, hooks, precisions
from llmb.sdk.report import SkipError
from tests.unit.sdk.stubs import fails, in_turn, subject


def option(**changes: object) -> PluginOption:
    return PluginOption(**{"name": "fuse", "default": "mlp", "help": "what is fused", **changes})


# -- hooks ------------------------------------------------------------------------------------


def test_sound_options_pass() -> None:
    sound = (
        option(choices=("mlp", "none")),
        option(name="threads", type="int", default=0, minimum=0),
        option(name="keep-memory", type="bool", default=True),
        option(name="scale_2", type="float", default=1.5),
    )
    assert hooks.options(subject(options=lambda: sound)) == "fuse, threads, keep-memory, scale_2"


@pytest.mark.parametrize(
    ("offered", "word"),
    [
        ([option(name="Fuse")], "lower-case"),
        ([option(name="a=b")], "lower-case"),
        ([option(name="")], "lower-case"),
        ([option(), option(default="all")], "twice"),
        ([option(help=" ")], "help text"),
        ([option(default="all", choices=("mlp", "none"))], "refuses its own"),
        ([option(type="int", default=-1, minimum=0)], "refuses its own"),
        ([option(type="int", default="many")], "refuses its own"),
        ([option(default=3)], "is no str"),
        ([option(type="bool", default=1)], "is no bool"),
        ([option(type="float", default=1)], "is no float"),
        ([option(type="int", default=1, choices=(1, 2.0))], "2.0"),
    ],
)
def test_an_option_that_cannot_be_typed_is_refused(offered: list[PluginOption], word: str) -> None:
    fails(hooks.options, subject(options=lambda: offered), word)


def test_variables_that_change_from_call_to_call_are_refused() -> None:
    changing = in_turn({"A": "1", "B": "1"}, {"A": "1", "B": "2"})
    fails(hooks.environment_variables, subject(environment_variables=changing), "B")


def refuse(*arguments: object) -> None:
    raise UnavailableError("llmb_patches raised KeyError")


class WithoutDevice(SimpleNamespace):
    """A subject whose device is not here."""

    @property
    def backend(self) -> None:
        raise SkipError("no device here")


@pytest.mark.parametrize(
    ("check", "hook"),
    [
        (hooks.environment_variables, "environment_variables"),
        (hooks.patches, "patches"),
        (hooks.helpers, "helpers"),
        (hooks.native_libraries, "native_libraries"),
    ],
)
def test_a_hook_that_fails_for_want_of_the_device_is_skipped_and_otherwise_fails(
    check: Callable[[Any], str], hook: str
) -> None:
    looked_at = subject(**{hook: refuse})
    with pytest.raises(UnavailableError, match="KeyError"):
        check(looked_at)
    without = {k: v for k, v in vars(looked_at).items() if k != "backend"}
    with pytest.raises(SkipError, match="no device here"):
        check(WithoutDevice(**without))


@pytest.mark.parametrize(
    ("name", "reason", "word"),
    [("sensor", " ", "reason"), (" ", "why", "name"), ("*", "why", "every")],
)
def test_a_helper_thread_has_a_name_of_its_own_and_a_reason(
    name: str, reason: str, word: str
) -> None:
    declared = [DeclaredHelper(name=name, reason=reason, cpu_share=0.01)]
    fails(hooks.helpers, subject(helpers=lambda: declared), word)


def test_a_helper_thread_is_listed() -> None:
    declared = [DeclaredHelper(name="sensor*", reason="adds up power", cpu_share=0.05)]
    assert hooks.helpers(subject(helpers=lambda: declared)) == "sensor*"


def test_variables_are_looked_for_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    order = SimpleNamespace(environment={"ACME_STREAMS": "4"})
    fails(hooks.environment_takes_effect, subject(order=order), "ACME_STREAMS", "'4'", "None")
    monkeypatch.setenv("ACME_STREAMS", "4")
    assert hooks.environment_takes_effect(subject(order=order)) == "ACME_STREAMS"
    with pytest.raises(SkipError):
        hooks.environment_takes_effect(subject(order=SimpleNamespace(environment={})))


@pytest.mark.parametrize(
    ("target", "reason", "word"),
    [
        ("torch.jit.trace", " ", "reason"),
        ("", "why", "target"),
        ("*", "why", "all of torch"),
        ("torch.*", "why", "all of torch"),
    ],
)
def test_a_patch_without_a_target_or_reason_or_of_everything_is_refused(
    target: str, reason: str, word: str
) -> None:
    declared = [DeclaredPatch(target=target, reason=reason)]
    fails(hooks.patches, subject(patches=lambda: declared), word)


def test_a_patch_of_one_module_may_be_a_glob() -> None:
    for target in ("torch.jit.*", "torch.nn.functional.*", "torch.Tensor.*"):
        declared = [DeclaredPatch(target=target, reason="why")]
        assert hooks.patches(subject(patches=lambda found=declared: found)) == target


def test_a_native_library_must_be_there_and_have_a_licence(tmp_path: Path) -> None:
    file = tmp_path / "libacme.so"
    library = NativeLibrary(path=str(file), licence="MIT", where_to_get="acme.example")
    fails(hooks.native_libraries, subject(native_libraries=lambda: [library]), "not a file")
    file.write_bytes(b"")
    assert hooks.native_libraries(subject(native_libraries=lambda: [library])) == "libacme.so"
    bare = library.model_copy(update={"licence": ""})
    fails(hooks.native_libraries, subject(native_libraries=lambda: [bare]), "licence")


# -- backend ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("device_type", ""),
        ("device_type", "acme:0"),
        ("device_type", None),
        ("step_clock", "fast"),
        ("distributed_backend", ""),
        ("distributed_backend", 3),
    ],
)
def test_a_backend_that_does_not_describe_itself_is_refused(attribute: str, value: object) -> None:
    fails(backend.describes_itself, subject(answers={attribute: value}), attribute, repr(value))


@pytest.mark.parametrize("value", [False, None, 1, "yes"])
def test_availability_of_an_offered_device_is_true(value: object) -> None:
    fails(backend.is_available, subject(answers={"is_available": lambda: value}), repr(value))


@pytest.mark.parametrize(
    ("found", "word"),
    [
        ((), "at least one"),
        ([Device(name="cpu")], "tuple"),
        (None, "tuple"),
        (("cpu",), "holds a str"),
        ((Device(name="acme:0"),), "acme:0"),
        ((Device(name="cpu:0"), Device(name="cpu:0")), "alike"),
        ((Device(name="cpu", memory_bytes=0),), "None"),
    ],
)
def test_devices_that_cannot_be_told_apart_are_refused(found: object, word: str) -> None:
    fails(backend.devices, subject(answers={"devices": lambda: found}), word)


@pytest.mark.parametrize("found", [None, {"driver": None}, {"driver": (1, 2)}, {3: "4"}])
def test_versions_that_are_no_text_are_refused(found: object) -> None:
    fails(backend.versions, subject(answers={"versions": lambda: found}))


@pytest.mark.parametrize(
    ("peak", "word"),
    [
        (1e12, "expected Peak"),
        (Peak(flops_per_second=0.0, source="p. 3"), "unknown is None"),
        (Peak(flops_per_second=-1.0, source="p. 3"), "unknown is None"),
        (Peak(flops_per_second=1e12, source=" "), "datasheet"),
    ],
)
def test_a_peak_without_figure_or_source_is_refused(peak: object, word: str) -> None:
    asked = subject(answers={"peak_flops": lambda name: peak if name == "BF16" else None})
    fails(backend.peak_flops, asked, "BF16", word)


def test_a_peak_of_a_format_that_does_not_exist_is_refused() -> None:
    peak = Peak(flops_per_second=1e12, source="p. 3")
    fails(backend.peak_flops, subject(answers={"peak_flops": lambda name: peak}), "not exist")


# -- precisions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"dtype": "bfloat17"}, "bfloat17"),
        ({"dtype": "int32"}, "floating-point"),
        ({"dtype": "nn"}, "floating-point"),
        ({"bits": 32}, "stored in the 16"),
        ({"name": "FP16"}, "FP16 has dtype 'bfloat16', that name is for 'float16'"),
        ({"name": "bf16", "bits": 8}, "a name of its own"),
    ],
)
def test_a_format_that_is_not_what_its_name_says_is_refused(
    changes: dict[str, object], word: str
) -> None:
    offered = (BF16.model_copy(update=changes),)
    fails(precisions.formats, subject(precisions=lambda config: offered), word)


def test_formats_of_a_vendors_own_pass() -> None:
    own = (
        TF32,
        Precision(name="FP8", bits=8, dtype="bfloat16"),
        Precision(name="ACME12", bits=12, dtype="float32", master_weights=True, native=False),
    )
    said = precisions.formats(subject(precisions=lambda config: own))
    assert said.startswith("TF32, FP8, ACME12 (slow, UNVERIFIED: llmb does not know this format")
    assert "Precision(format=...)" in said


def test_a_format_of_a_vendors_own_with_data_passes_without_a_remark() -> None:
    data = Format(Element(2, 2, 7.0, scale="e8m0", block=32))
    own = (Precision(name="ACME5", bits=5, dtype="bfloat16", format=data),)
    assert precisions.formats(subject(precisions=lambda config: own)) == "ACME5"


def test_formats_that_change_from_call_to_call_are_refused() -> None:
    changing = in_turn((BF16,), (FP32,))
    fails(precisions.formats, subject(precisions=changing), "second time")


def test_a_refused_format_needs_a_reason() -> None:
    refused = (BF16, Refused(name="FP8", reason=" "))
    fails(precisions.refusals, subject(precisions=lambda config: refused), "FP8", "reason")


def test_without_a_native_format_nothing_can_be_chosen() -> None:
    slow = (BF16.model_copy(update={"native": False}), Refused(name="FP8", reason="no"))
    fails(precisions.native, subject(precisions=lambda config: slow), "native")
    fails(precisions.native, subject(precisions=lambda config: ()), "native")


# -- answers ----------------------------------------------------------------------------------


def test_a_number_of_warm_up_steps_is_always_the_same() -> None:
    fails(answers.warmup_steps, subject(warmup_steps=in_turn(3, 4)), "3 and then 4")


@pytest.mark.parametrize("facts", [{"driver": ""}, {" ": "1"}])
def test_a_fact_that_says_nothing_is_refused(facts: dict[str, str]) -> None:
    fails(answers.describe_system, subject(describe_system=lambda config: facts), "leave out")


def test_telemetry_is_looked_at_several_times() -> None:
    readings = [{"power_w": 5.0, "compilations": float(n), "throttled": n % 2} for n in range(9)]
    assert answers.telemetry(subject(telemetry=in_turn(*readings))).startswith(
        "compilations, power_w, throttled"
    )
    with pytest.raises(SkipError):
        answers.telemetry(subject())


def test_a_throttle_that_is_neither_0_nor_1_is_refused() -> None:
    fails(answers.telemetry, subject(telemetry=lambda backend: {"throttled": 0.5}), "throttled")


def test_a_count_of_compilations_that_falls_is_refused() -> None:
    falling = in_turn({"compilations": 3.0}, {"compilations": 1.0})
    fails(answers.telemetry, subject(telemetry=falling), "compilations")


def test_telemetry_that_is_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**12, 200_000_000))
    monkeypatch.setattr(answers.clock, "now_ns", lambda: next(now))
    fails(answers.telemetry, subject(telemetry=lambda backend: {"power_w": 1.0}), "200 ms")
