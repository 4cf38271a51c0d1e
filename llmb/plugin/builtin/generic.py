"""The generic plugin: any accelerator ``torch.accelerator`` supports, without vendor code."""

from __future__ import annotations

import torch

from llmb.config import BF16, FP16, FP32, Precision, RunConfig
from llmb.plugin import Lacks, hookimpl
from llmb.plugin.kit.accelerator import Accelerator, has_fused_adamw
from llmb.plugin.kit.formats import set_float32_products

#: In torch's words: "the MPS framework doesn't support float64".
_WITHOUT_FLOAT64 = frozenset({"mps"})


class TorchAccelerator(Accelerator):
    """The accelerator of this torch build."""

    @property
    def lacks(self) -> Lacks:
        """Float64, on devices for which torch's own error message excludes float64."""
        return Lacks(float64=self.device_type in _WITHOUT_FLOAT64)


@hookimpl
def llmb_backend(config: RunConfig) -> TorchAccelerator:
    """Drive the accelerator of this torch build."""
    return TorchAccelerator(config.device)


@hookimpl
def llmb_precisions() -> list[Precision]:
    """Offer the plain casts; TF32 is a vendor's switch, and a vendor's package offers TF32."""
    return [BF16, FP16, FP32]


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Keep FP32 exact: no device may multiply in a narrower format."""
    set_float32_products(config.precision)


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Use torch's fused AdamW kernel on devices with the kernel."""
    accelerator = torch.accelerator.current_accelerator()
    return {"fused": True} if accelerator and has_fused_adamw(accelerator.type) else {}
