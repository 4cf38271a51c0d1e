"""Dense datasheet peaks of NVIDIA devices, by torch's device name.

FP32 is the rate of the CUDA cores; TF32, FP16, BF16 and FP8 are rates of the tensor cores. A rate
printed with 2:4 sparsity is halved, a rate printed for eight GPUs is divided by eight, and the
source says so. A name must match in full: an unknown part, variant, MIG instance or virtual GPU has
no peak here. A device with a different number of multiprocessors than the part has no peak either:
the device is a share of the GPU under the whole GPU's name.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmb.plugin import Peak


@dataclass(frozen=True)
class _Printed:
    """A figure as printed in the document, in TFLOP/s, and the divisor for one dense device."""

    teraflops: float
    divisor: int = 1
    note: str = "dense"


def _sparse(teraflops: float) -> _Printed:
    return _Printed(teraflops, 2, "with sparsity, halved")


def _eight_sparse(teraflops: float) -> _Printed:
    return _Printed(teraflops, 16, "for eight GPUs with sparsity, divided by 16")


@dataclass(frozen=True)
class _GpuPeaks:
    """One column of a datasheet. ``names`` leave out the prefix "NVIDIA" or "Tesla"."""

    names: tuple[str, ...]
    document: str
    fp32: float | _Printed
    tf32: float | _Printed | None = None
    fp16: float | _Printed | None = None
    bf16: float | _Printed | None = None
    fp8: float | _Printed | None = None
    #: From the document or, failing a document, from a device's log; None without a source.
    multiprocessors: int | None = None


_V100 = "NVIDIA V100 datasheet (1165301-r5)"
_A100 = "NVIDIA Ampere Architecture In-Depth (developer.nvidia.com/blog, 2020), table 1, A100"
_H100 = "NVIDIA H100 Tensor Core GPU Architecture whitepaper V1.04, tables 1 and 3"
_H200 = "NVIDIA H200 specifications (nvidia.com/en-us/data-center/h200)"
_HGX = "NVIDIA HGX platform specifications (nvidia.com/en-us/data-center/hgx)"

_PARTS = (
    _GpuPeaks(("V100-SXM2-16GB", "V100-SXM2-32GB"), f"{_V100}, V100 SXM2", fp32=15.7, fp16=125),
    _GpuPeaks(("V100-PCIE-16GB", "V100-PCIE-32GB"), f"{_V100}, V100 PCIe", fp32=14, fp16=112),
    _GpuPeaks(("V100S-PCIE-32GB",), f"{_V100}, V100S PCIe", fp32=16.4, fp16=130),
    _GpuPeaks(("T4",), "NVIDIA T4 Tensor Core GPU datasheet (951643)", fp32=8.1, fp16=65),
    # The A100 datasheet (1758950-r4) prints the same peaks for SXM and PCIe, 40 and 80 GB.
    _GpuPeaks(
        ("A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIE-40GB", "A100 80GB PCIe"),
        _A100,
        fp32=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
        multiprocessors=108,
    ),
    _GpuPeaks(("A30",), "NVIDIA A30 datasheet (2022)", fp32=10.3, tf32=82, fp16=165, bf16=165),
    _GpuPeaks(("A10",), "NVIDIA A10 datasheet", fp32=31.2, tf32=62.5, fp16=125, bf16=125),
    _GpuPeaks(
        ("A40",), "NVIDIA A40 datasheet (1469711-r8)", fp32=37.4, tf32=74.8, fp16=149.7, bf16=149.7
    ),
    _GpuPeaks(
        ("RTX A6000",),
        "NVIDIA Ampere GA102 GPU Architecture whitepaper V2, table 3",
        fp32=38.7,
        tf32=77.4,
        fp16=154.8,
        bf16=154.8,
    ),
    _GpuPeaks(
        ("L4",),
        "NVIDIA L4 Tensor Core GPU datasheet",
        fp32=30.3,
        tf32=_sparse(120),
        fp16=_sparse(242),
        bf16=_sparse(242),
        fp8=_sparse(485),
    ),
    _GpuPeaks(
        ("L40",), "NVIDIA L40 datasheet", fp32=90.5, tf32=90.5, fp16=181.05, bf16=181.05, fp8=362
    ),
    # Printed as "362.05 | 733": the dense figure is not half of the sparse, and is as printed.
    _GpuPeaks(
        ("L40S",),
        "NVIDIA L40S specifications (nvidia.com/en-us/data-center/l40s)",
        fp32=91.6,
        tf32=183,
        fp16=362.05,
        bf16=362.05,
        fp8=733,
    ),
    # The datasheet names a single tensor figure, and public copies disagree on further formats.
    _GpuPeaks(
        ("RTX 6000 Ada Generation",),
        "NVIDIA RTX 6000 Ada Generation datasheet (2504660)",
        fp32=91.1,
        fp8=_sparse(1457),
    ),
    _GpuPeaks(
        ("H100 80GB HBM3",),
        f"{_H100}, H100 SXM5",
        fp32=66.9,
        tf32=494.7,
        fp16=989.4,
        bf16=989.4,
        fp8=1978.9,
        multiprocessors=132,
    ),
    _GpuPeaks(
        ("H100 PCIe",),
        f"{_H100}, H100 PCIe",
        fp32=51.2,
        tf32=378,
        fp16=756,
        bf16=756,
        fp8=1513,
        multiprocessors=114,
    ),
    _GpuPeaks(
        ("H100 NVL",),
        "NVIDIA H100 specifications (nvidia.com/en-us/data-center/h100), H100 NVL",
        fp32=60,
        tf32=_sparse(835),
        fp16=_sparse(1671),
        bf16=_sparse(1671),
        fp8=_sparse(3341),
        multiprocessors=132,
    ),
    _GpuPeaks(
        ("H200",),
        f"{_H200}, H200 SXM",
        fp32=67,
        tf32=_sparse(989),
        fp16=_sparse(1979),
        bf16=_sparse(1979),
        fp8=_sparse(3958),
        multiprocessors=132,
    ),
    _GpuPeaks(
        ("H200 NVL",),
        f"{_H200}, H200 NVL",
        fp32=60,
        tf32=_sparse(835),
        fp16=_sparse(1671),
        bf16=_sparse(1671),
        fp8=_sparse(3341),
        multiprocessors=132,
    ),
    _GpuPeaks(
        ("GH200 120GB", "GH200 480GB", "GH200 144G HBM3e"),
        "NVIDIA GH200 Grace Hopper Superchip datasheet (2705455)",
        fp32=67,
        tf32=494,
        fp16=990,
        bf16=990,
        fp8=1979,
    ),
    _GpuPeaks(
        ("B200",),
        f"{_HGX}, HGX B200",
        fp32=_Printed(600, 8, "for eight GPUs, divided by 8"),
        tf32=_eight_sparse(18_000),
        fp16=_eight_sparse(36_000),
        bf16=_eight_sparse(36_000),
        fp8=_eight_sparse(72_000),
        multiprocessors=148,
    ),
    # NVIDIA's dgxc-benchmarking README (2026) rates the GPUs of GB200 and GB300 at 2,450 in BF16
    # and 4,900 in FP8; the table has the figures of the specifications.
    _GpuPeaks(
        ("GB200",),
        "NVIDIA GB200 NVL72 specifications (nvidia.com/en-us/data-center/gb200-nvl72), Superchip",
        fp32=_Printed(160, 2, "for two GPUs, halved"),
        tf32=_Printed(5_000, 4, "for two GPUs with sparsity, divided by 4"),
        fp16=_Printed(10_000, 4, "for two GPUs with sparsity, divided by 4"),
        bf16=_Printed(10_000, 4, "for two GPUs with sparsity, divided by 4"),
        fp8=_Printed(20_000, 4, "for two GPUs with sparsity, divided by 4"),
    ),
    _GpuPeaks(
        ("B300 SXM6 AC",),
        f"{_HGX}, HGX B300",
        fp32=_Printed(600, 8, "for eight GPUs, divided by 8"),
        tf32=_eight_sparse(18_000),
        fp16=_eight_sparse(36_000),
        bf16=_eight_sparse(36_000),
        fp8=_eight_sparse(72_000),
    ),
    _GpuPeaks(
        ("GB300",),
        "NVIDIA Blackwell Ultra datasheet, individual GPU specifications, GB300",
        fp32=80,
        tf32=_sparse(2_500),
        fp16=_sparse(5_000),
        bf16=_sparse(5_000),
        fp8=_sparse(10_000),
    ),
)

_BY_NAME = {name: part for part in _PARTS for name in part.names}
_FORMATS = ("FP32", "TF32", "FP16", "BF16", "FP8")


def peak(device_name: str, precision: str, multiprocessors: int | None = None) -> Peak | None:
    """Return the dense peak of one device, None for an unpublished peak or an unknown name.

    Args:
        device_name: the result of ``torch.cuda.get_device_name``, for example "NVIDIA H100 PCIe".
        precision: "FP32", "TF32", "FP16", "BF16" or "FP8".
        multiprocessors: torch's ``multi_processor_count`` if known, for example 108 for an A100, 42
            for a 3g instance of an A100.
    """
    part = _BY_NAME.get(device_name.removeprefix("NVIDIA ").removeprefix("Tesla "))
    if part is None or precision not in _FORMATS:
        return None
    if multiprocessors is not None and part.multiprocessors not in (None, multiprocessors):
        return None
    figure = getattr(part, precision.lower())
    if figure is None:
        return None
    printed = figure if isinstance(figure, _Printed) else _Printed(figure)
    return Peak(
        flops_per_second=printed.teraflops * 1e12 / printed.divisor,
        source=f"{part.document}: {printed.teraflops:,g} TFLOP/s {printed.note}",
    )
