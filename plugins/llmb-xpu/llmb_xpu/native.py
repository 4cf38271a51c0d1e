"""An Intel GPU by torch's own ``xpu`` back end: nothing of Intel's Python packages is needed."""

from __future__ import annotations

from typing import Any

import torch

from llmb.config import BF16, FP16, FP32, TF32, Precision, Refused
from llmb.plugin import EnergyReading, Peak
from llmb.plugin.kit.accelerator import Accelerator
from llmb.plugin.kit.formats import set_float32_products

from . import datasheets, hwmon

#: Gauge -> function of ``torch.xpu``. ``power_draw`` is left out: a reading takes 100 ms.
_GAUGES = {"clock_mhz": "clock_rate", "temperature_c": "temperature"}


class XpuBackend(Accelerator):
    """Torch's accelerator on an Intel GPU, with facts unknown to torch."""

    def energy(self) -> EnergyReading | None:
        """Return the kernel's counter, None if the owner of the counter is unclear."""
        return hwmon.energy(torch.accelerator.device_count())

    def peak_flops(self, precision: str) -> Peak | None:
        """Return the published peak of the device."""
        properties = torch.xpu.get_device_properties(self.index)
        return datasheets.peak(
            str(properties.name), getattr(properties, "gpu_eu_count", None), precision
        )

    def versions(self) -> dict[str, str]:
        """Return the driver's version, and the runtime of the torch build."""
        properties = torch.xpu.get_device_properties(self.index)
        facts = {
            "xpu_driver": getattr(properties, "driver_version", None),
            "xpu_platform": getattr(properties, "platform_name", None),
            "xpu_runtime": torch.version.xpu,
        }
        return {name: str(value) for name, value in facts.items() if value}


def precisions(device: str) -> list[Precision | Refused]:
    """Return the formats of the GPU ``device``, the fastest first."""
    properties = torch.xpu.get_device_properties(device if ":" in device else None)
    bf16 = bool(getattr(properties, "has_bfloat16_conversions", True))
    fp16 = bool(getattr(properties, "has_fp16", True))
    formats: list[Precision | Refused] = [
        BF16.model_copy(update={"native": bf16}),
        FP16.model_copy(update={"native": fp16}),
        TF32
        if _multiplies_tf32(properties)
        else Refused(name=TF32.name, reason="the matrix engines of this GPU do not take TF32"),
        FP32,
    ]
    return formats


def _multiplies_tf32(properties: Any) -> bool:
    # torch.xpu.is_tf32_supported, in newer versions of torch, asks for any matrix engine. Some
    # engines lack TF32 (example: the Arc A series): the longer name tells.
    name = "has_subgroup_matrix_multiply_accumulate"
    return bool(getattr(properties, f"{name}_tensor_float32", getattr(properties, name, False)))


def set_environment(precision: Precision) -> None:
    """Let float32 products use TF32 if requested, and never a narrower format."""
    set_float32_products(precision)
    # The switch of torch's xpu matrix products (pytorch/pytorch#144240).
    torch.backends.mkldnn.allow_tf32 = precision.name == TF32.name  # type: ignore[assignment]


def telemetry() -> dict[str, float]:
    """Return clock and temperature if torch reads them (2.13 does, with pyzes; 2.8 does not)."""
    readings = {}
    for gauge, function in _GAUGES.items():
        try:
            readings[gauge] = float(getattr(torch.xpu, function)())
        except Exception:  # an older torch, no pyzes, no permission
            continue
    return readings


def describe(device: str) -> dict[str, str]:
    """Return torch's facts about the GPU ``device`` that a reader may ask for."""
    properties = torch.xpu.get_device_properties(device if ":" in device else None)
    names = ("gpu_eu_count", "max_compute_units", "architecture", "is_integrated_gpu")
    found = {f"xpu_{name}": getattr(properties, name, None) for name in names}
    return {name: str(value) for name, value in found.items() if value is not None}
