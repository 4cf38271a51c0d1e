"""Canonical weights within a model repacked by Intel's extension.

A repacked layer keeps its weight in oneDNN's blocked layout: ``[out, in]`` becomes ``[out/64,
in/16, 8, 64, 2]`` in BF16 and ``[out/64, in/16, 16, 64]`` in FP32 (blocks of 32 or 16 for small
layers), filled up with zeros. Zeros stay zeros: their gradient is 0 and decay scales. The layer
also holds an empty parameter, used only by inference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from llmb.plugin import Kind, ParameterView

_EMPTY = "_ipex_module_empty_"


class Repacked:
    """The weight of one repacked layer, in its canonical shape."""

    def __init__(self, layer: nn.Module, path: str) -> None:
        """Read and write the weight of ``layer``, which lies at ``path`` in the model."""
        self._weight = layer.get_parameter("weight")
        #: The extension's own handle to the layout: packs and unpacks bit for bit.
        self._layout: Any = layer.ctx
        self.padding = tuple(
            f"{path}.{name}"
            for name, parameter in layer.named_parameters(recurse=False)
            if name.startswith(_EMPTY)
        )
        if self._weight.numel() != self._unpacked(self._weight.detach()).numel():
            self.padding += (f"{path}.weight",)

    def read(self, kind: Kind) -> Tensor | None:
        """Return value or gradient; the moments belong to the optimizer, unknown to the model."""
        stored = {"value": self._weight.detach(), "grad": self._weight.grad}.get(kind)
        return None if stored is None else self._unpacked(stored)

    def write(self, value: Tensor) -> None:
        """Overwrite the value, given as ``[out, in]``."""
        with torch.no_grad():
            self._weight.copy_(self._layout.pack(value.to(self._weight.dtype)))

    def _unpacked(self, stored: Tensor) -> Tensor:
        unpacked: Tensor = self._layout.to_public(stored)
        return unpacked


@dataclass(frozen=True)
class Stored:
    """A parameter stored without repacking."""

    parameter: nn.Parameter
    padding: tuple[str, ...] = ()

    def read(self, kind: Kind) -> Tensor | None:
        """Return value or gradient."""
        return {"value": self.parameter.detach(), "grad": self.parameter.grad}.get(kind)

    def write(self, value: Tensor) -> None:
        """Overwrite the value."""
        with torch.no_grad():
            self.parameter.copy_(value)


def is_repacked(module: nn.Module) -> bool:
    """Tell whether the extension holds the weight of ``module`` in the extension's own layout."""
    return hasattr(getattr(module, "ctx", None), "to_public")


def views(model: nn.Module) -> dict[str, ParameterView] | None:
    """Return canonical name -> view, None where nothing was repacked."""
    found: dict[str, ParameterView] = {}
    layers = {path: layer for path, layer in model.named_modules() if is_repacked(layer)}
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        if last.startswith(_EMPTY):
            continue
        repacked = path in layers and last == "weight"
        found[name] = Repacked(layers[path], path) if repacked else Stored(parameter)
    return found if layers else None
