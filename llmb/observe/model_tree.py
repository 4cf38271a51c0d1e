"""The module tree as text, before and after post-processing."""

from __future__ import annotations

from torch import nn


def describe(model: nn.Module) -> dict[str, str]:
    """Return path -> class and own parameters, such as ``Linear(in_features=...)``."""
    return {name or "(model)": _line(module) for name, module in model.named_modules()}


def _line(module: nn.Module) -> str:
    kind = type(module)
    own = ", ".join(
        f"{name}{list(p.shape)}:{str(p.dtype).removeprefix('torch.')}"
        for name, p in module.named_parameters(recurse=False)
    )
    return f"{kind.__module__}.{kind.__qualname__}({module.extra_repr()})" + (own and f" {own}")
