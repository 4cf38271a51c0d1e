"""What a run does without what its device lacks: who makes the reference, and what is said."""

from __future__ import annotations

import pytest

from llmb.config import BF16, FP32, AuditMode, Precision
from llmb.records.lacks import Lacks
from llmb.supervision.lacking import consequences, host_patience_s, reference_on_device
from tests.unit.builders_runtime import TINY, run_config

#: 64 sequences of llama-1.4b: 1.5e14 FLOPs.
HEAVY = {"device": "warp:0", "batch_size": 64}
NO_FLOAT64, NO_PRODUCTS = Lacks(float64=True), Lacks(full_float32_products=True)


@pytest.mark.parametrize(
    ("precision", "lacks", "on_device"),
    [
        (FP32, Lacks(), True),
        (BF16, Lacks(), True),
        (FP32, NO_FLOAT64, False),
        (BF16, NO_FLOAT64, True),
        (BF16, NO_PRODUCTS, False),
        (BF16, Lacks(memory_figures=True, eager_kernels=True, minutes_per_program=9), True),
    ],
)
def test_no_reference_is_ordered_of_a_device_that_lacks_its_format(
    precision: Precision, lacks: Lacks, on_device: bool
) -> None:
    config = run_config(precision=precision, **HEAVY)
    assert reference_on_device(config, lacks) is on_device


@pytest.mark.parametrize("lacks", [Lacks(), NO_FLOAT64, NO_PRODUCTS])
def test_a_small_batch_and_the_hosts_own_are_the_hosts_whatever_is_lacking(lacks: Lacks) -> None:
    for config in (
        run_config(device="cpu", batch_size=64),
        run_config(device="warp:0", batch_size=1),
        run_config(device="warp:0", batch_size=64, shape_overrides=TINY),
    ):
        assert not reference_on_device(config, lacks)


def test_how_long_the_host_takes_for_the_reference_is_said_once_in_minutes() -> None:
    (line,) = consequences(run_config(precision=FP32, **HEAVY), NO_FLOAT64)
    assert line.startswith("warp:0 lacks float64: the host computes the reference of whole batches")
    assert "4.0e+14 FLOPs, about 22 min at 0.3 TFLOP/s" in line
    (line,) = consequences(run_config(precision=BF16, **HEAVY), NO_PRODUCTS)
    assert line.startswith("warp:0 lacks full FP32 products: ")


def test_what_changes_nothing_in_a_run_is_not_said() -> None:
    light = run_config(precision=FP32, device="warp:0", batch_size=1)
    unaudited = run_config(precision=FP32, audit=AuditMode.OFF, **HEAVY)
    assert consequences(light, NO_FLOAT64) == consequences(unaudited, NO_FLOAT64) == ()
    assert consequences(run_config(precision=BF16, **HEAVY), Lacks()) == ()


def test_a_device_without_figures_and_with_a_slow_compiler_has_a_line_for_each() -> None:
    config = run_config(device="warp:0")
    memory, compiler = consequences(config, Lacks(memory_figures=True, minutes_per_program=3))
    assert "peak memory is not measured" in memory
    assert compiler == "compiling a program takes about 3 min on warp:0"


def test_a_host_with_much_to_compute_is_waited_for_ten_times_as_long_as_is_estimated() -> None:
    assert host_patience_s(run_config(**HEAVY)) == pytest.approx(4600, rel=0.05)
