"""Intel's extension for PyTorch on the CPU: availability, and treatment of a model.

The last release is 2.8, for torch 2.8 only. Beside every different torch the import prints "ERROR!
..." and dies of ``AttributeError: module 'os' has no attribute 'exit'``, so the plugin checks the
pair of versions first.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW

from llmb.config import BF16, FP16, FP32, Precision, Refused
from llmb.errors import UnavailableError
from llmb.plugin.builtin.cpu import CpuBackend

from .repacked import is_repacked

DISTRIBUTION = "intel-extension-for-pytorch"
_MODULE = "intel_extension_for_pytorch"
_INSTALL = "pip install 'llmb-xpu[ipex]' in an environment of its own (it brings torch 2.8.0)"


class ExtensionBackend(CpuBackend):
    """The host processor, with the extension's kernels in torch."""

    def versions(self) -> dict[str, str]:
        """The instruction set, and the version of the extension."""
        return {**super().versions(), DISTRIBUTION: version(DISTRIBUTION)}


def fault() -> str | None:
    """Return the reason why the extension cannot be used here, None without a known reason.

    Reads package metadata and imports nothing.
    """
    try:
        own = version(DISTRIBUTION)
    except PackageNotFoundError:
        return f"{DISTRIBUTION} is not installed: {_INSTALL}"
    if _series(own) != _series(torch.__version__):
        return (
            f"{DISTRIBUTION} {own} works with torch {_series(own)} only, this is torch "
            f"{torch.__version__}: {_INSTALL}"
        )
    return None


def _series(release: str) -> str:
    return ".".join(release.split(".")[:2])


def load() -> Any:
    """Import the extension.

    Raises:
        UnavailableError: the extension does not fit this torch, or cannot be imported.
    """
    reason = fault()
    if reason is not None:
        raise UnavailableError(reason)
    try:
        return import_module(_MODULE)
    except (Exception, SystemExit) as error:  # the extension exits without AVX2
        words = " ".join(str(error).split())
        raise UnavailableError(
            f"{DISTRIBUTION} {version(DISTRIBUTION)} cannot be imported: "
            f"{type(error).__name__}: {words}"
        ) from error


def is_loaded() -> bool:
    """Tell whether the process has imported the extension."""
    return _MODULE in sys.modules


def keep_float32() -> None:
    """Import the extension, and let no float32 product be computed in a narrower format."""
    extension = load()
    extension.set_fp32_math_mode(extension.FP32MathMode.FP32, device="cpu")


def precisions() -> list[Precision | Refused]:
    """Return the training formats of the extension on this processor."""
    features = import_module(f"{load().__name__}._C")
    bf16_native = features.isa_has_avx512_bf16_support() or features.isa_has_amx_support()
    no_16_bits = "{} needs AVX-512, which this processor does not have"
    return [
        BF16.model_copy(update={"native": bf16_native})
        if features.onednn_has_bf16_support()
        else Refused(name=BF16.name, reason=no_16_bits.format(BF16.name)),
        FP32,
        FP16.model_copy(update={"native": True})
        if features.onednn_has_fp16_support()
        else Refused(
            name=FP16.name,
            reason="the extension packs FP16 weights only where the processor multiplies FP16",
        ),
        Refused(name="TF32", reason="no CPU computes in TF32; --device xpu may"),
    ]


def describe() -> dict[str, str]:
    """Return the instruction set the extension's kernels were chosen for."""
    features = import_module(f"{load().__name__}._C")
    return {"ipex_isa": str(features._get_current_isa_level())}


def repack(model: nn.Module) -> nn.Module:
    """Return ``model`` with replaced linear layers and weights in oneDNN's blocked layout.

    The weights stay in the harness's dtype: without ``dtype`` the extension neither makes float32
    masters nor splits BF16 values into halves. Training mode demands an optimizer: the function
    passes a temporary optimizer, whose ``state_dict`` the extension patches, and the harness builds
    its own optimizer afterwards.
    """
    throw_away = AdamW(model.parameters())
    processed: nn.Module
    processed, _ = load().optimize(
        model.train(),
        optimizer=throw_away,
        inplace=True,
        auto_kernel_selection=True,  # otherwise FP32 layers stay unchanged
        split_master_weight_for_bf16=False,
        fuse_update_step=False,
    )
    for layer in processed.modules():
        if is_repacked(layer):
            _keep_training(layer)
    return processed


def _keep_training(layer: nn.Module) -> None:
    """Let ``layer`` stay in training mode: evaluation mode computes the same without gradients.

    The audit reads gradients of models with dropout in evaluation mode.
    """

    def train(mode: bool = True) -> nn.Module:
        return layer

    layer.train = train  # type: ignore[method-assign]
