"""The generic plugin: any accelerator ``torch.accelerator`` knows, with nothing vendor-made."""

from __future__ import annotations

import torch

from llmb.config import BF16, FP16, FP32, Precision, RunConfig
from llmb.plugin import Lacks, hookimpl
from llmb.plugin.kit.accelerator import Accelerator, has_fused_adamw
from llmb.plugin.kit.formats import set_float32_products

#: In torch's words: "the MPS framework doesn't support float64".
_WITHOUT_FLOAT64 = frozenset({"mps"})


class TorchAccelerator(Accelerator):
    """Whatever accelerator this torch build has."""

    @property
    def lacks(self) -> Lacks:
        """Float64 on devices of which torch itself says that their framework has none."""
        return Lacks(float64=self.device_type in _WITHOUT_FLOAT64)


@hookimpl
def llmb_backend(config: RunConfig) -> TorchAccelerator:
    """Drive the accelerator of this torch build."""
    return TorchAccelerator(config.device)


@hookimpl
def llmb_precisions() -> list[Precision]:
    """Offer the plain casts; TF32 is a vendor's switch and therefore a vendor package's format."""
    return [BF16, FP16, FP32]


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Keep FP32 honest: no device may quietly multiply in a narrower format."""
    set_float32_products(config.precision)


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Use torch's fused AdamW kernel where the device has one."""
    accelerator = torch.accelerator.current_accelerator()
    return {"fused": True} if accelerator and has_fused_adamw(accelerator.type) else {}
