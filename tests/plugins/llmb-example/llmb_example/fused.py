"""The example's post-processing: gate and up projection as one matrix, the same function."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.plugin import ParameterView


class FusedMLP(nn.Module):
    """``down(silu(gate(x)) * up(x))`` with gate and up stacked in one parameter."""

    def __init__(self, mlp: nn.Module) -> None:
        """Take over the weights of ``mlp``."""
        super().__init__()
        stacked = torch.cat((mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()))
        self.gate_up = nn.Parameter(stacked)  # [2 * intermediate, hidden]
        self.down_proj = mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` through the gated network."""
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)


class Half:
    """A canonical parameter that is one half of a stacked one (0: gate, 1: up)."""

    padding: tuple[str, ...] = ()

    def __init__(self, stacked: nn.Parameter, half: int) -> None:
        """Look at ``half`` of ``stacked``."""
        self._stacked, self._half = stacked, half

    def read(self, kind: str) -> Tensor | None:
        """Return value or gradient; the moments are the optimizer's, which a model cannot see."""
        tensor = {"value": self._stacked.detach(), "grad": self._stacked.grad}.get(kind)
        return None if tensor is None else tensor.chunk(2)[self._half]

    def write(self, value: Tensor) -> None:
        """Overwrite the value."""
        with torch.no_grad():
            self._stacked.chunk(2)[self._half].copy_(value)


class Whole(Half):
    """A canonical parameter that is stored as it is."""

    def read(self, kind: str) -> Tensor | None:
        """Return value or gradient."""
        return {"value": self._stacked.detach(), "grad": self._stacked.grad}.get(kind)

    def write(self, value: Tensor) -> None:
        """Overwrite the value."""
        with torch.no_grad():
            self._stacked.copy_(value)


def fused_views(model: nn.Module) -> dict[str, ParameterView] | None:
    """Return canonical name -> view, None where nothing was fused."""
    views: dict[str, ParameterView] = {}
    for name, parameter in model.named_parameters():
        path, _, last = name.rpartition(".")
        if last == "gate_up":
            views[f"{path}.gate_proj.weight"] = Half(parameter, 0)
            views[f"{path}.up_proj.weight"] = Half(parameter, 1)
        else:
            views[name] = Whole(parameter, 0)
    return views
