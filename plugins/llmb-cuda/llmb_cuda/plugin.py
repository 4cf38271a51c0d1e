"""NVIDIA's hooks. ``llmb.plugin.kit`` has the code common to all torch accelerators."""

from __future__ import annotations

from torch import nn

from llmb.config import Precision, Refused, RunConfig
from llmb.plugin import Backend, DeclaredPatch, PluginOption, hookimpl
from llmb.plugin.kit import formats, surface

from .backend import CudaBackend

_BF16, _TF32, _FP8 = (8, 0), (8, 0), (8, 9)  # compute capabilities: Ampere, Ampere, Ada


@hookimpl
def llmb_backend(config: RunConfig) -> CudaBackend:
    """Drive the NVIDIA device of a CUDA build of torch."""
    return CudaBackend(config.device, replays_graphs=surface.replays_graphs(config))


@hookimpl
def llmb_options() -> list[PluginOption]:
    """Offer the modes of torch.compile, the attention kernels and the recipes of FP8."""
    return surface.options()


@hookimpl
def llmb_precisions(config: RunConfig) -> list[Precision | Refused]:
    """Offer the formats of the device's tensor cores."""
    backend = CudaBackend(config.device)

    def lacks(name: str, since: tuple[int, int]) -> str | None:
        if backend.capability >= since:
            return None
        have, need = (".".join(map(str, c)) for c in (backend.capability, since))
        return f"{backend.name} has compute capability {have}, {name} needs {need}"

    return surface.precisions(
        config,
        bf16=backend.capability >= _BF16,
        tf32=lacks("TF32", _TF32),
        fp8=lacks("FP8", _FP8),
    )


@hookimpl
def llmb_warmup_steps(config: RunConfig) -> int:
    """Request untimed steps for compiling and for capturing graphs."""
    return surface.warmup_steps(config)


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Settle TF32 and the attention kernel."""
    surface.set_environment(config)


@hookimpl
def llmb_post_process_model(model: nn.Module, config: RunConfig) -> nn.Module:
    """Convert to FP8 if asked for, and compile."""
    return surface.post_process(model, config)


@hookimpl
def llmb_optimizer_options() -> dict[str, bool]:
    """Step with torch's fused kernel."""
    return {"fused": True}


@hookimpl
def llmb_patches() -> list[DeclaredPatch]:
    """Declare the callables that torchao replaces."""
    return formats.patches()


@hookimpl
def llmb_telemetry(backend: Backend) -> dict[str, float]:
    """Read clocks, temperature, power and throttling."""
    assert isinstance(backend, CudaBackend)
    return backend.telemetry()
