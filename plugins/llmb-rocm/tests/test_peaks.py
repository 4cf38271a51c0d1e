"""Datasheet peaks: names with a figure, and above all names without a figure."""

from __future__ import annotations

import pytest
from llmb_rocm.peaks import _FORMATS, _PARTS, peak

KNOWN = [
    # torch's full name, a format, and the dense figure of one device in TFLOP/s.
    ("AMD Instinct MI100", "FP16", 184.6),
    ("AMD Instinct MI100", "BF16", 92.3),
    ("AMD Instinct MI210", "BF16", 181),
    ("AMD Instinct MI250", "BF16", 181.05),
    ("AMD Instinct MI250X", "BF16", 191.5),
    ("AMD Instinct MI250X", "FP32", 47.85),
    ("AMD Instinct MI300A", "FP8", 1961.2),
    ("AMD Instinct MI300X", "TF32", 653.7),
    ("AMD Instinct MI300X", "BF16", 1307.4),
    ("AMD Instinct MI325X", "FP8", 2614.9),
    ("AMD Instinct MI350X", "BF16", 2300),
    ("AMD Instinct MI355X", "FP8", 5000),
]


@pytest.mark.parametrize(("name", "precision", "teraflops"), KNOWN)
def test_a_known_part_has_its_dense_peak(name: str, precision: str, teraflops: float) -> None:
    found = peak(name, precision)
    assert found is not None
    assert found.flops_per_second == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "AMD Instinct MI300X VF",  # the share of a virtual function is unknown
        "AMD Instinct MI300X HF",
        "AMD Instinct MI308X",
        "AMD Instinct MI300",
        "AMD Instinct MI60",
        "AMD Radeon PRO W7900",
        "AMD Radeon Graphics",
        "NVIDIA H100 PCIe",
        "",
    ],
)
def test_an_unknown_part_has_no_peak(name: str) -> None:
    assert [peak(name, precision) for precision in _FORMATS] == [None] * 5


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("AMD Instinct MI100", "FP8"),
        ("AMD Instinct MI250X", "TF32"),
        ("AMD Instinct MI355X", "TF32"),
        ("AMD Instinct MI300X", "FP64"),
        ("AMD Instinct MI300X", "bf16"),
        ("AMD Instinct MI300X", "names"),
    ],
)
def test_a_format_that_the_part_does_not_have_has_no_peak(name: str, precision: str) -> None:
    assert peak(name, precision) is None


@pytest.mark.parametrize("name", ["AMD Instinct MI250X / MI250", "AMD Instinct MI250X/MI250"])
def test_a_name_of_two_parts_has_a_peak_only_with_the_compute_units(name: str) -> None:
    smaller, larger = peak(name, "BF16", 104), peak(name, "BF16", 110)
    assert smaller is not None
    assert larger is not None
    assert (smaller.flops_per_second, larger.flops_per_second) == (181.05e12, 191.5e12)
    assert peak(name, "BF16") is None


def test_a_partition_does_not_get_the_whole_device_s_peak() -> None:
    assert peak("AMD Instinct MI300X", "BF16", 304) is not None
    assert peak("AMD Instinct MI300X", "BF16", 38) is None


@pytest.mark.parametrize("part", _PARTS, ids=lambda part: part.names[0])
def test_a_narrower_format_is_never_slower(part: object) -> None:
    order = ("fp32", "tf32", "fp16", "fp8")
    rates = [rate for name in order if (rate := getattr(part, name))]
    assert rates == sorted(rates)


def test_a_source_names_the_document_what_is_printed_and_the_unit_that_reaches_it() -> None:
    found = peak("AMD Instinct MI250X", "FP32")
    assert found is not None
    assert found.source == (
        "AMD CDNA 2 white paper, product table, MI250X: "
        "95.7 TFLOP/s dense for 2 dies, halved, matrix cores"
    )
