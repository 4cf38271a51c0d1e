"""Every hook of llmb, each as short as it can be. Copy this, and keep what your device needs."""

from __future__ import annotations

import torch
from torch import nn

from llmb.config import BF16, FP16, FP32, Precision, RunConfig
from llmb.errors import UnavailableError
from llmb.plugin import DeclaredPatch, ParameterView, PluginOption, hookimpl

from .backend import ExampleBackend
from .fused import FusedMLP, fused_views


@hookimpl
def llmb_options() -> list[PluginOption]:
    """Let the user choose what is fused: ``llmb run -O fuse=none``."""
    return [
        PluginOption(name="fuse", default="mlp", choices=("mlp", "none"), help="modules to fuse")
    ]


@hookimpl
def llmb_environment_variables(config: RunConfig) -> dict[str, str]:
    """Set what libraries read when they are loaded."""
    return {"TORCH_EXAMPLE_FUSE": str(config.plugin_options["fuse"])}


@hookimpl
def llmb_backend(config: RunConfig) -> ExampleBackend:
    """Drive the CPU; leave ``auto`` to a plugin that really has a device."""
    if config.device.partition(":")[0] not in ("cpu", "auto"):
        raise UnavailableError(f"the example drives the CPU only, not {config.device!r}")
    return ExampleBackend()


@hookimpl
def llmb_precisions() -> list[Precision]:
    """Offer the common formats, the preferred one first; what is emulated is not native."""
    return [FP32, BF16, FP16.model_copy(update={"native": False})]


@hookimpl
def llmb_warmup_steps() -> int:
    """Ask for as many untimed steps as a compiler would need."""
    return 3


@hookimpl
def llmb_set_environment() -> None:
    """Permitted point 1: change a setting of torch (this one has no effect on a CPU)."""
    torch.backends.cudnn.benchmark = True


@hookimpl
def llmb_post_process_model(model: nn.Module, config: RunConfig) -> nn.Module:
    """Permitted point 2: one matrix product instead of two in every feed-forward block."""
    if config.plugin_options["fuse"] == "mlp":
        for layer in model.model.layers.values():
            layer.mlp = FusedMLP(layer.mlp)
    return model


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Choose which of torch's AdamW kernels steps."""
    return {"foreach": True}


@hookimpl
def llmb_parameter_map(model: nn.Module) -> dict[str, ParameterView] | None:
    """Say where the canonical parameters have gone."""
    return fused_views(model)


@hookimpl
def llmb_patches() -> list[DeclaredPatch]:
    """Declare what importing the vendor's library replaces in torch."""
    reason = "shows how a patch is declared; the example replaces nothing"
    return [DeclaredPatch(target="torch.nn.functional.example_*", reason=reason)]


@hookimpl
def llmb_describe_system() -> dict[str, str]:
    """Give facts only the vendor's own library knows."""
    return {"example_driver": "4.5.6"}
