"""The hooks of ``--plugin xpu``: Intel GPUs natively, CPUs with Intel's retired extension."""

from __future__ import annotations

from torch import nn

from llmb.config import Precision, Refused, RunConfig
from llmb.errors import UnavailableError, UsageError
from llmb.plugin import DeclaredPatch, ParameterView, PluginOption, hookimpl
from llmb.plugin.builtin import cpu
from llmb.plugin.kit import compiling
from llmb.plugin.kit.accelerator import has_fused_adamw

from . import compiled, extension, native, patches, repacked, target
from .target import Target

_NO_FP8 = Refused(name="FP8", reason="neither torch's xpu back end nor this package trains in FP8")


@hookimpl
def llmb_options() -> list[PluginOption]:
    """Offer the extension, torch.compile on GPUs, and the options of the plugin cpu on CPUs."""
    return [
        PluginOption(
            name=target.OPTION,
            default="auto",
            choices=target.CHOICES,
            help="intel-extension-for-pytorch 2.8: auto is on for --device cpu and off for xpu",
        ),
        PluginOption(
            name="compile",
            default=compiled.AUTO,
            choices=compiled.CHOICES,
            help="torch.compile, on GPUs: auto is each block where triton is found, else none",
        ),
        *cpu.llmb_options(),
    ]


@hookimpl
def llmb_backend(config: RunConfig) -> extension.ExtensionBackend | native.XpuBackend:
    """Drive a GPU, or the CPU with the extension."""
    found = target.find(config)
    _check_compile(found, config)
    if found is Target.CPU:
        return extension.ExtensionBackend()
    return native.XpuBackend(config.device)


def _check_compile(found: Target, config: RunConfig) -> None:
    asked = config.plugin_options["compile"]
    if asked in (compiled.AUTO, compiled.NONE):
        return
    if found is Target.CPU:
        raise UsageError(f"-O compile={asked}: not on the CPU, whose layers the extension replaces")
    missing = compiling.missing_for_compiling()
    if missing is not None:
        raise UnavailableError(f"-O compile={asked} needs {missing}; or use -O compile=none")


@hookimpl
def llmb_environment_variables(config: RunConfig) -> dict[str, str]:
    """Set the thread count of the CPU before OpenMP starts; a GPU needs nothing."""
    return cpu.llmb_environment_variables(config) if _on_cpu(config) else {}


@hookimpl
def llmb_precisions(config: RunConfig) -> list[Precision | Refused]:
    """Offer the formats of the device, and give the reason for each refused format."""
    on_cpu = _on_cpu(config)
    formats = extension.precisions() if on_cpu else native.precisions(config.device)
    return [*formats, _NO_FP8]


@hookimpl
def llmb_warmup_steps(config: RunConfig) -> int:
    """Request untimed steps for a compiler, if any."""
    by_us = compiled.chosen(config) != compiled.NONE
    return compiling.WARMUP_STEPS if by_us or config.executor != "eager" else 1


@hookimpl
def llmb_set_environment(config: RunConfig) -> None:
    """Keep declared formats honest; on the CPU the hook imports the extension.

    Raises:
        UsageError: the extension cannot train with ``config``.
    """
    if _on_cpu(config):
        if config.mixed_precision:
            raise UsageError(
                "Intel's extension packs weights in the format it multiplies, so it cannot keep "
                "float32 weights under BF16: add --no-mixed-precision, or use --plugin cpu"
            )
        extension.keep_float32()
    else:
        native.set_environment(config.precision)


@hookimpl
def llmb_post_process_model(model: nn.Module, config: RunConfig) -> nn.Module:
    """Repack the weights on the CPU; on a GPU compile the model, or each of its blocks."""
    if _on_cpu(config):
        return cpu.llmb_post_process_model(extension.repack(model), config)
    return compiled.post_process(model, config)


@hookimpl
def llmb_optimizer_options(config: RunConfig) -> dict[str, bool]:
    """Use torch's fused AdamW kernel if the device has the kernel."""
    return {"fused": True} if _on_cpu(config) or has_fused_adamw("xpu") else {}


@hookimpl
def llmb_parameter_map(model: nn.Module) -> dict[str, ParameterView] | None:
    """Say where the canonical parameters lie in a repacked model."""
    return repacked.views(model)


@hookimpl
def llmb_patches() -> list[DeclaredPatch]:
    """Declare the callables replaced by the import of the extension."""
    return patches.declared() if extension.is_loaded() else []


@hookimpl
def llmb_telemetry() -> dict[str, float]:
    """Read clock and temperature of a GPU."""
    return {} if extension.is_loaded() else native.telemetry()


@hookimpl
def llmb_describe_system(config: RunConfig) -> dict[str, str]:
    """Return the facts of the GPU, or of the extension on this processor."""
    if _on_cpu(config):
        return extension.describe()
    return {**native.describe(config.device), "xpu_compile": compiled.chosen(config)}


def _on_cpu(config: RunConfig) -> bool:
    """Tell whether ``config``, whose device is settled, is a run of the extension."""
    return config.device.partition(":")[0] == Target.CPU.value
