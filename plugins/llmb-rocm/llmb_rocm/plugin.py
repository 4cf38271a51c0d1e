"""AMD's hooks. ``llmb.plugin.kit`` has the code common to all torch accelerators."""

from __future__ import annotations

from torch import nn

from llmb.config import TF32, Precision, Refused, RunConfig
from llmb.plugin import Backend, DeclaredPatch, PluginOption, hookimpl
from llmb.plugin.kit import formats, surface

from .backend import RocmBackend

# Formats of the matrix units per architecture, from AMD's instruction set manuals: TF32 (as xf32)
# is in CDNA 3 and not in CDNA 4; FP8 is in CDNA 3, CDNA 4 and RDNA 4.
_BF16 = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
_TF32 = ("gfx940", "gfx941", "gfx942")
_FP8 = ("gfx940", "gfx941", "gfx942", "gfx950", "gfx1200", "gfx1201")


@hookimpl
def llmb_backend(config: RunConfig) -> RocmBackend:
    """Drive the AMD device of a ROCm build of torch."""
    return RocmBackend(config.device, replays_graphs=surface.replays_graphs(config))


@hookimpl
def llmb_options() -> list[PluginOption]:
    """Offer the options of every torch accelerator, and hipBLASLt."""
    return [
        *surface.options(),
        PluginOption(
            name="hipblaslt",
            type="bool",
            default=True,
            help="let torch's addmm use hipBLASLt (DISABLE_ADDMM_HIP_LT=0)",
        ),
    ]


@hookimpl
def llmb_environment_variables(config: RunConfig) -> dict[str, str]:
    """Choose the library for products: torch reads the variables once, at the first product."""
    return {
        "DISABLE_ADDMM_HIP_LT": "0" if config.plugin_options["hipblaslt"] else "1",
        "HIPBLASLT_ALLOW_TF32": "1" if config.precision.name == TF32.name else "0",
    }


@hookimpl
def llmb_precisions(config: RunConfig) -> list[Precision | Refused]:
    """Offer the formats of the device's matrix units."""
    backend = RocmBackend(config.device)

    def lacks(name: str, architectures: tuple[str, ...]) -> str | None:
        if backend.architecture.startswith(architectures):
            return None
        return f"the matrix units of {backend.name} ({backend.architecture}) have no {name}"

    return surface.precisions(
        config,
        bf16=backend.architecture.startswith(_BF16),
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
    assert isinstance(backend, RocmBackend)
    return backend.telemetry()
