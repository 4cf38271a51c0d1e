"""The options and post-processing that vendors of torch accelerators share.

Options: compiled or eager, the attention kernel and the FP8 recipe. The optimizer is torch's fused
AdamW. A plugin's hooks call these functions; the plugin states the abilities of the hardware.
"""

from __future__ import annotations

from torch import nn

from llmb.config import BF16, FP16, FP32, TF32, Precision, Refused, RunConfig
from llmb.errors import UnavailableError
from llmb.plugin.kit import attention, compiling, formats
from llmb.plugin.options import PluginOption

#: torch.compile's own names of its modes; "none" is eager.
COMPILE_CHOICES = (
    "none",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)


def options() -> list[PluginOption]:
    """Return ``compile``, ``attention`` and ``fp8``; eager is the default without a compiler."""
    return [
        PluginOption(
            name="compile",
            default="none" if compiling.missing_for_compiling() else "default",
            choices=COMPILE_CHOICES,
            help="mode of torch.compile; none is eager",
        ),
        PluginOption(
            name="attention",
            default="auto",
            choices=attention.CHOICES,
            help="kernel of scaled_dot_product_attention; auto leaves it to torch",
        ),
        PluginOption(
            name="fp8",
            default="tensorwise",
            choices=formats.FP8_CHOICES,
            help="how --precision FP8 is done: a recipe of torchao, or Transformer Engine",
        ),
    ]


def is_compiled(config: RunConfig) -> bool:
    """Tell whether the run uses a compiler: the plugin's, or the user's ``--executor``."""
    return config.executor != "eager" or config.plugin_options["compile"] != "none"


def replays_graphs(config: RunConfig) -> bool:
    """Tell whether torch.compile captures graphs in the chosen mode."""
    chosen = config.plugin_options["compile"]
    mode = config.compile_mode if config.executor == "inductor" else chosen
    return config.executor != "thunder" and mode in ("reduce-overhead", "max-autotune")


def precisions(
    config: RunConfig, *, bf16: bool, tf32: str | None, fp8: str | None
) -> list[Precision | Refused]:
    """Return the formats of a device, preferred first.

    ``bf16``: the hardware computes in BF16. ``tf32``, ``fp8``: why the hardware lacks the format,
    None for a format that the hardware has.
    """
    recipe = str(config.plugin_options["fp8"])
    fp8 = fp8 or formats.missing_for_fp8(recipe, compiled=is_compiled(config))
    plain = [BF16, FP16] if bf16 else [FP16, BF16.model_copy(update={"native": False})]
    return [
        *plain,
        Refused(name="TF32", reason=tf32) if tf32 else TF32,
        FP32,
        Refused(name="FP8", reason=fp8) if fp8 else formats.FP8,
    ]


def warmup_steps(config: RunConfig) -> int:
    """Return the number of untimed steps for compiling and graph capture."""
    return compiling.WARMUP_STEPS if is_compiled(config) else 1


def set_environment(config: RunConfig) -> None:
    """Set float32 products and the attention kernel: permitted point 1."""
    formats.set_float32_products(config.precision)
    attention.choose(str(config.plugin_options["attention"]))


def post_process(model: nn.Module, config: RunConfig) -> nn.Module:
    """Return ``model`` compiled, and in FP8 for precision FP8: permitted point 2.

    If the user has chosen an executor, the executor compiles.

    Raises:
        UnavailableError: torch.compile was requested and cannot work on this machine.
    """
    if config.precision.name == formats.FP8.name:
        model = formats.to_fp8(model, str(config.plugin_options["fp8"]))
    if config.executor != "eager" or config.plugin_options["compile"] == "none":
        return model
    missing = compiling.missing_for_compiling()
    if missing is not None:
        raise UnavailableError(
            f"-O compile={config.plugin_options['compile']} needs {missing}; or use -O compile=none"
        )
    return compiling.compile_in_place(model, str(config.plugin_options["compile"]))
