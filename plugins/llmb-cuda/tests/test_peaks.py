"""Datasheet peaks: names with a figure, and above all names without a figure."""

from __future__ import annotations

import pytest
from llmb_cuda.peaks import _FORMATS, _PARTS, peak

KNOWN = [
    # torch's full name, a format, and the dense figure in TFLOP/s.
    ("Tesla V100-SXM2-32GB", "FP16", 125),
    ("Tesla V100-PCIE-16GB", "FP16", 112),
    ("Tesla T4", "FP16", 65),
    ("NVIDIA A100-SXM4-80GB", "BF16", 312),
    ("NVIDIA A100 80GB PCIe", "TF32", 156),
    ("NVIDIA A10", "BF16", 125),
    ("NVIDIA L40", "BF16", 181.05),
    ("NVIDIA L40S", "BF16", 362.05),
    ("NVIDIA L4", "FP8", 242.5),
    ("NVIDIA H100 80GB HBM3", "BF16", 989.4),
    ("NVIDIA H100 80GB HBM3", "FP8", 1978.9),
    ("NVIDIA H100 PCIe", "BF16", 756),
    ("NVIDIA H100 NVL", "BF16", 835.5),
    ("NVIDIA H200", "BF16", 989.5),
    ("NVIDIA H200 NVL", "BF16", 835.5),
    ("NVIDIA GH200 480GB", "BF16", 990),
    ("NVIDIA B200", "BF16", 2250),
    ("NVIDIA GB200", "BF16", 2500),
    ("NVIDIA B300 SXM6 AC", "FP8", 4500),
    ("NVIDIA GB300", "FP32", 80),
]


@pytest.mark.parametrize(("name", "precision", "teraflops"), KNOWN)
def test_a_known_part_has_its_dense_peak(name: str, precision: str, teraflops: float) -> None:
    found = peak(name, precision)
    assert found is not None
    assert found.flops_per_second == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100",  # says neither SXM nor PCIe
        "NVIDIA H100 64GB HBM2",
        "NVIDIA H800",
        "NVIDIA H20",
        "NVIDIA A100-SXM-64GB",  # a separate part with more multiprocessors
        "NVIDIA A100",
        "NVIDIA A10G",  # slower than the A10
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA L20",
        "NVIDIA L400",
        "Tesla V100-SXM3-32GB",
        "NVIDIA RTX 6000",
        "NVIDIA GeForce RTX 4090",
        "GRID A100D-80C",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA",
        "",
    ],
)
def test_an_unknown_part_or_a_slice_of_a_known_one_has_no_peak(name: str) -> None:
    assert [peak(name, precision) for precision in _FORMATS] == [None] * 5


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("Tesla V100-SXM2-32GB", "BF16"),
        ("Tesla V100-SXM2-32GB", "TF32"),
        ("NVIDIA A100-SXM4-80GB", "FP8"),
        ("NVIDIA RTX 6000 Ada Generation", "BF16"),  # public copies of the datasheet disagree
        ("NVIDIA H100 80GB HBM3", "FP64"),
        ("NVIDIA H100 80GB HBM3", "NVFP4"),
        ("NVIDIA H100 80GB HBM3", "bf16"),
        ("NVIDIA H100 80GB HBM3", "names"),
    ],
)
def test_a_format_that_is_not_published_has_no_peak(name: str, precision: str) -> None:
    assert peak(name, precision) is None


@pytest.mark.parametrize("name", [name for part in _PARTS for name in part.names])
def test_a_narrower_format_is_never_slower(name: str) -> None:
    found = {precision: peak(name, precision) for precision in _FORMATS}
    order = ("FP32", "TF32", "FP16", "FP8")
    rates = [rate.flops_per_second for name in order if (rate := found[name])]
    assert rates == sorted(rates)
    if found["BF16"] is not None:
        assert found["BF16"] == found["FP16"]


def test_no_two_parts_claim_the_same_name() -> None:
    names = [name for part in _PARTS for name in part.names]
    assert len(names) == len(set(names))


def test_a_source_names_the_document_and_what_is_printed_there() -> None:
    found = peak("NVIDIA H100 NVL", "BF16")
    assert found is not None
    assert found.source == (
        "NVIDIA H100 specifications (nvidia.com/en-us/data-center/h100), H100 NVL: "
        "1,671 TFLOP/s with sparsity, halved"
    )


def test_a_figure_for_eight_gpus_with_sparsity_is_divided_by_sixteen() -> None:
    found = peak("NVIDIA B200", "FP8")
    assert found is not None
    assert found.flops_per_second == 4.5e15
    assert found.source.endswith("72,000 TFLOP/s for eight GPUs with sparsity, divided by 16")
