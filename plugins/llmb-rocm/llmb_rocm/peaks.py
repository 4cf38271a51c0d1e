"""Dense datasheet peaks of AMD Instinct devices, by torch's device name.

TF32, FP16, BF16 and FP8 are rates of the matrix cores, and so is FP32: the BLAS libraries multiply
FP32 on the matrix cores, too (the vector units reach half of the rate on CDNA 1 and 2, and the same
rate from CDNA 3 on). torch sees a die (GCD) of an MI250 or MI250X as one device, with half of the
module's printed peak. A name must match in full; a device with a different number of compute units
than the part (for example a partition of an MI300) has no peak here.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmb.plugin import Peak


@dataclass(frozen=True)
class _ModulePeaks:
    """One column of a document, in dense TFLOP/s of the whole module."""

    names: tuple[str, ...]
    document: str
    #: Compute units of one torch device.
    compute_units: int
    fp32: float
    fp16: float
    bf16: float
    tf32: float | None = None
    fp8: float | None = None
    #: torch devices in the module.
    devices: int = 1


_CDNA2 = "AMD CDNA 2 white paper, product table"
_CDNA3 = "AMD CDNA 3 white paper (2025, 2258402-B), product table"
#: The white paper's table 1 (amd.com) prints the MI300A's TF32 for the MI300X, too: 490.3; endnote
#: MI300-11 of the white paper and the ROCm documentation have 653.7.
_MI300 = "AMD ROCm documentation, AMD Instinct MI300 Series microarchitecture, peak performance"
_MI350 = "AMD ROCm documentation, AMD Instinct MI350 Series microarchitecture, performance"
#: HIP gives both modules this name; only the number of compute units tells them apart.
_EITHER = ("AMD Instinct MI250X / MI250", "AMD Instinct MI250X/MI250")

_PARTS = (
    _ModulePeaks(
        ("AMD Instinct MI100",),
        "Introducing AMD CDNA Architecture (white paper), table 1, MI100",
        compute_units=120,
        fp32=46.1,
        fp16=184.6,
        bf16=92.3,
    ),
    _ModulePeaks(
        ("AMD Instinct MI210",),
        f"{_CDNA2}, MI210",
        compute_units=104,
        fp32=45.3,
        fp16=181,
        bf16=181,
    ),
    _ModulePeaks(
        ("AMD Instinct MI250", *_EITHER),
        f"{_CDNA2}, MI250",
        compute_units=104,
        fp32=90.5,
        fp16=362.1,
        bf16=362.1,
        devices=2,
    ),
    _ModulePeaks(
        ("AMD Instinct MI250X", *_EITHER),
        f"{_CDNA2}, MI250X",
        compute_units=110,
        fp32=95.7,
        fp16=383,
        bf16=383,
        devices=2,
    ),
    _ModulePeaks(
        ("AMD Instinct MI300A",),
        f"{_CDNA3}, MI300A",
        compute_units=228,
        fp32=122.6,
        tf32=490.3,
        fp16=980.6,
        bf16=980.6,
        fp8=1961.2,
    ),
    _ModulePeaks(
        ("AMD Instinct MI300X",),
        f"{_MI300}, MI300X",
        compute_units=304,
        fp32=163.4,
        tf32=653.7,
        fp16=1307.4,
        bf16=1307.4,
        fp8=2614.9,
    ),
    _ModulePeaks(
        ("AMD Instinct MI325X",),
        f"{_CDNA3}, MI325X",
        compute_units=304,
        fp32=163.4,
        tf32=653.7,
        fp16=1307.4,
        bf16=1307.4,
        fp8=2614.9,
    ),
    # Printed in PFLOP/s with one decimal. CDNA 4 has no TF32.
    _ModulePeaks(
        ("AMD Instinct MI350X",),
        f"{_MI350}, MI350X",
        compute_units=256,
        fp32=144.2,
        fp16=2300,
        bf16=2300,
        fp8=4600,
    ),
    _ModulePeaks(
        ("AMD Instinct MI355X",),
        f"{_MI350}, MI355X",
        compute_units=256,
        fp32=157.3,
        fp16=2500,
        bf16=2500,
        fp8=5000,
    ),
)

_FORMATS = ("FP32", "TF32", "FP16", "BF16", "FP8")


def peak(device_name: str, precision: str, compute_units: int | None = None) -> Peak | None:
    """Return the dense peak of one device, None for an unpublished peak or an unknown part.

    Args:
        device_name: the result of ``torch.cuda.get_device_name``, for example "AMD Instinct
            MI300X".
        precision: "FP32", "TF32", "FP16", "BF16" or "FP8".
        compute_units: torch's ``multi_processor_count`` if known. The count tells an MI250X from an
            MI250 under a common name of HIP, and a partition from the whole device.
    """
    parts = [
        part
        for part in _PARTS
        if device_name in part.names and compute_units in (None, part.compute_units)
    ]
    if len(parts) != 1 or precision not in _FORMATS:
        return None
    part = parts[0]
    teraflops = getattr(part, precision.lower())
    if teraflops is None:
        return None
    share = "dense" if part.devices == 1 else f"dense for {part.devices} dies, halved"
    units = ", matrix cores" if precision == "FP32" else ""
    return Peak(
        flops_per_second=teraflops * 1e12 / part.devices,
        source=f"{part.document}: {teraflops:,g} TFLOP/s {share}{units}",
    )
