"""Published dense peaks of Intel GPUs. A peak without a public page is left out."""

from __future__ import annotations

import re

from llmb.plugin import Peak

_TACC = "Stampede3 user guide, TACC: 832 BF16 and 52 FP64 TFLOP/s a GPU of 128 Xe cores"
_PER_CLOCK = "; a Xe core does {} (Intel Architecture Day 2021)"
#: Execution units of the whole card: 8 in each of 128 Xe cores.
_MAX_1550_UNITS = 1024
_MAX_1550 = {
    "BF16": Peak(flops_per_second=832e12, source=_TACC),
    "FP16": Peak(flops_per_second=832e12, source=_TACC + _PER_CLOCK.format("FP16 as fast as BF16")),
    "TF32": Peak(
        flops_per_second=416e12, source=_TACC + _PER_CLOCK.format("TF32 half as fast as BF16")
    ),
    "FP32": Peak(flops_per_second=52e12, source=_TACC + _PER_CLOCK.format("FP32 as fast as FP64")),
}
#: TFLOP/s in FP32 of Intel's product pages (32 operations a clock of each vector engine). For
#: 16-bit floats Intel gives no figure.
_ARC_PRO_FP32 = {"B50": 10.65, "B60": 12.28, "B65": 12.28, "B70": 22.94}


def peak(name: str, units: int | None, precision: str) -> Peak | None:
    """Return the peak of the device with torch's name ``name``, None for an unpublished peak.

    ``units`` is the device's number of execution units: torch may list each tile of a card as a
    device. Example: 512 of the 1,024 units of a Max 1550 have half of the peak.
    """
    words = re.sub(r"\((R|TM)\)", "", name)
    if "Data Center GPU Max 1550" in words and units and precision in _MAX_1550:
        whole = _MAX_1550[precision]
        share = min(1.0, units / _MAX_1550_UNITS)
        return whole.model_copy(update={"flops_per_second": whole.flops_per_second * share})
    arc = re.search(r"Arc Pro (B\d0|B65)\b", words)
    if arc and precision == "FP32" and arc[1] in _ARC_PRO_FP32:
        return Peak(
            flops_per_second=_ARC_PRO_FP32[arc[1]] * 1e12,
            source=f"Intel's product page of the Arc Pro {arc[1]}: peak FP32",
        )
    return None
