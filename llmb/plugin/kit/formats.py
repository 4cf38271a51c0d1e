"""Formats beyond a plain cast: TF32 products of float32 operands, and FP8 linear layers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files, version
from typing import Any

import torch
from torch import nn

from llmb.config import Precision
from llmb.errors import UnavailableError
from llmb.plugin import DeclaredPatch

#: 8-bit operands in the linear layers of every block, BF16 elsewhere. Weights, gradients and
#: moments are stored in BF16.
FP8 = Precision(name="FP8", bits=8, dtype="bfloat16")

#: torchao's names of its recipes: one scale per tensor, or one scale per row.
TORCHAO_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
TRANSFORMER_ENGINE = "transformer-engine"
FP8_CHOICES = (*TORCHAO_RECIPES, TRANSFORMER_ENGINE)
_ALIGNMENT = 16  # 8-bit matrix products need both sizes of a weight to be multiples of 16
#: Names of layers in a block contain the block's number, in every family: "layers.3.mlp".
_IN_A_BLOCK = re.compile(r"\.\d+\.")


def set_float32_products(precision: Precision) -> None:
    """Let float32 matrix products use TF32 for precision TF32, and no narrower format otherwise."""
    torch.set_float32_matmul_precision("high" if precision.name == "TF32" else "highest")


def missing_for_fp8(recipe: str, *, compiled: bool) -> str | None:
    """Return why this software cannot do FP8 by ``recipe``, None if FP8 works."""
    package = "transformer-engine-torch" if recipe == TRANSFORMER_ENGINE else "torchao"
    in_one = recipe == TRANSFORMER_ENGINE and _has_engine_in_one_package()
    if not in_one and not _is_installed(package):
        return f"-O fp8={recipe} needs the package {package}"
    if recipe == TRANSFORMER_ENGINE and compiled:
        return (
            "Transformer Engine's FP8 goes through no compiler: add -O compile=none, and leave "
            "--executor out"
        )
    return None


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _has_engine_in_one_package() -> bool:
    """Tell whether Transformer Engine is one package with its torch part, as in containers."""
    try:
        parts = files("transformer-engine") or ()
    except PackageNotFoundError:
        return False
    return any(part.name.startswith("transformer_engine_torch") for part in parts)


def patches() -> list[DeclaredPatch]:
    """Declare torchao's replacements in this process: since 0.18, two functions of Triton code."""
    patch = sys.modules.get("torchao.float8._inductor_patch")
    if not getattr(patch, "_PATCHED", False):
        return []
    return [
        DeclaredPatch(
            target=f"torch._inductor.codegen.triton.TritonOverrides.{name}",
            reason="torchao writes it as tl.where, around a miscompiled FP8 store "
            "(triton-lang/triton issue 11111)",
        )
        for name in ("minimum", "maximum")
    ]


def to_fp8(model: nn.Module, recipe: str) -> nn.Module:
    """Return ``model`` with the linear layers of its blocks computing in FP8.

    The output head stays unchanged, and so do layers with a size that is no multiple of 16.

    Raises:
        UnavailableError: no linear layer has suitable sizes.
    """
    names = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and _IN_A_BLOCK.search(name)
        and not (module.in_features % _ALIGNMENT or module.out_features % _ALIGNMENT)
    }
    if not names:
        raise UnavailableError(
            f"FP8: no linear layer has sizes that are multiples of {_ALIGNMENT}; "
            "use other --hidden-size and --intermediate-size"
        )
    if recipe == TRANSFORMER_ENGINE:
        return _with_transformer_engine(model, names)
    float8 = import_module("torchao.float8")
    converted: nn.Module = float8.convert_to_float8_training(
        model,
        config=float8.Float8LinearConfig.from_recipe_name(recipe),
        module_filter_fn=lambda module, name: name in names,
    )
    return converted


def _with_transformer_engine(model: nn.Module, names: set[str]) -> nn.Module:
    engine = import_module("transformer_engine.pytorch")
    for name in names:
        old = model.get_submodule(name)
        assert isinstance(old, nn.Linear)
        new = engine.Linear(
            old.in_features,
            old.out_features,
            bias=old.bias is not None,
            params_dtype=old.weight.dtype,
            device=old.weight.device,
        )
        with torch.no_grad():
            new.weight.copy_(old.weight)
            if old.bias is not None:
                new.bias.copy_(old.bias)
        model.set_submodule(name, new)
    autocast = getattr(engine, "autocast", None) or engine.fp8_autocast  # renamed in 2.9
    _run_under(model, lambda: autocast(enabled=True))
    return model


def _run_under(model: nn.Module, context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let ``model`` compute under ``context``; a wrapper would rename the parameters."""
    forward = model.forward

    def under(*arguments: Any, **named: Any) -> Any:
        with context():
            return forward(*arguments, **named)

    model.forward = under
