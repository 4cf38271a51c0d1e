"""The generic plugin: any accelerator ``torch.accelerator`` knows, with nothing vendor-made."""

from __future__ import annotations

import torch

from llmb.config import BF16, FP16, FP32, Precision, RunConfig
from llmb.plugin import hookimpl
from llmb.plugin.kit.accelerator import Accelerator, has_fused_adamw
from llmb.plugin.kit.formats import set_float32_products


@hookimpl
def llmb_backend(config: RunConfig) -> Accelerator:
    """Drive the accelerator of this torch build."""
    return Accelerator(config.device)


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
