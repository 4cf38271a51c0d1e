"""What a device lacks: named for readers, and how long it is waited for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llmb.config import BF16, FP16, FP32, TF32, Precision
from llmb.records.lacks import Lacks


def test_what_declares_nothing_lacks_nothing_and_is_waited_for_as_usual() -> None:
    assert Lacks().named() == ()
    assert Lacks().patience_s(600) == 600
    assert not any(Lacks().wide_format(precision) for precision in (BF16, FP32))


def test_everything_that_is_lacking_is_named_in_one_order() -> None:
    every = Lacks(
        minutes_per_program=2.5,
        memory_figures=True,
        eager_kernels=True,
        full_float32_products=True,
        float64=True,
    )
    assert every.named() == (
        "float64",
        "full FP32 products",
        "eager kernels",
        "memory figures",
        "a quick compiler (about 2.5 min a program)",
    )


@pytest.mark.parametrize(
    ("precision", "needs"),
    [
        *((one, "float64") for one in (FP32, TF32)),
        *((one, "full_float32_products") for one in (BF16, FP16)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_run_on_float32_is_judged_in_float64_and_others_in_full_float32(
    precision: Precision, needs: str
) -> None:
    others = {"float64", "full_float32_products"} - {needs}
    assert Lacks(**{needs: True}).wide_format(precision)
    assert not Lacks(**dict.fromkeys(others, True)).wide_format(precision)


def test_a_slow_compiler_is_waited_for_thirty_programs() -> None:
    assert Lacks(minutes_per_program=1).patience_s(600) == 1800
    assert Lacks(minutes_per_program=1).patience_s(3600) == 3600


@pytest.mark.parametrize("minutes", [0, -1, 241, float("nan"), float("inf")])
def test_minutes_without_sense_are_refused(minutes: Any) -> None:
    with pytest.raises(ValidationError):
        Lacks(minutes_per_program=minutes)


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "xpu", "mps"])
def test_kernels_of_torch_itself_are_not_lacking(device: str) -> None:
    assert Lacks().fault(device) is None
    told = Lacks(eager_kernels=True).fault(device)
    assert told is not None
    assert told.startswith(f"torch's own kernels on {device.partition(':')[0]} run when called")


def test_a_device_of_a_plugin_may_record_its_steps() -> None:
    assert Lacks(eager_kernels=True).fault("xla:0") is None
