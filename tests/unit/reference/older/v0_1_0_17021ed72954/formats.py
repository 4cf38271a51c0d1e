"""Numeric formats emulated in plain torch: what an honest run in a format looks like, in numbers.

Operands of every linear layer are rounded to the format, products and sums stay in the model's own
type. The audit measures the borders between classes of precision with these, never with a vendor's
own code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Rounding = Callable[[Tensor], Tensor]

_E4M3_MAX = 448.0
_E5M2_MAX = 57344.0
_TF32_DROPPED_BITS = 13  # of float32's 23 explicit bits of the significand, 10 stay


def round_tf32(value: Tensor) -> Tensor:
    """Round to 10 explicit bits of the significand, to nearest even, as TF32 products do."""
    bits = value.float().contiguous().view(torch.int32)
    last = (bits >> _TF32_DROPPED_BITS) & 1
    half = (1 << (_TF32_DROPPED_BITS - 1)) - 1
    rounded = (bits + half + last) & ~((1 << _TF32_DROPPED_BITS) - 1)
    return rounded.view(torch.float32).to(value.dtype)


def round_bf16(value: Tensor) -> Tensor:
    """Round to bfloat16 and back."""
    return value.to(torch.bfloat16).to(value.dtype)


def round_e4m3(value: Tensor) -> Tensor:
    """Round to 8-bit E4M3 with one scale for the whole tensor, and back."""
    return _scaled(value, torch.float8_e4m3fn, _E4M3_MAX)


def round_e5m2(value: Tensor) -> Tensor:
    """Round to 8-bit E5M2 with one scale for the whole tensor, and back."""
    return _scaled(value, torch.float8_e5m2, _E5M2_MAX)


def _scaled(value: Tensor, narrow: torch.dtype, largest: float) -> Tensor:
    wide = value.float()
    scale = wide.abs().amax().clamp(min=torch.finfo(torch.float32).tiny * largest) / largest
    return ((wide / scale).to(narrow).float() * scale).to(value.dtype)


class _Product(torch.autograd.Function):
    """``x @ w.T`` with rounded operands, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, forward: Rounding, backward: Rounding) -> Tensor:
        x, w = forward(x), forward(w)
        ctx.save_for_backward(x, w)
        ctx.rounding = backward
        return F.linear(x, w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, w = ctx.saved_tensors
        grad = ctx.rounding(grad)
        return grad @ w, grad.flatten(0, -2).t() @ x.flatten(0, -2), None, None


class _Emulated(nn.Module):
    """A linear layer whose operands are rounded."""

    def __init__(self, linear: nn.Linear, forward: Rounding, backward: Rounding) -> None:
        super().__init__()
        self.weight = linear.weight
        self._roundings = (forward, backward)

    def forward(self, x: Tensor) -> Tensor:
        """Return the product in the emulated format."""
        out: Tensor = _Product.apply(x, self.weight, *self._roundings)  # type: ignore[no-untyped-call]
        return out


#: Format -> rounding of activations and weights, rounding of incoming gradients.
FORMATS: dict[str, tuple[Rounding, Rounding]] = {
    "TF32": (round_tf32, round_tf32),
    "BF16": (round_bf16, round_bf16),
    "FP8": (round_e4m3, round_e5m2),
}


def emulate(model: nn.Module, name: str) -> nn.Module:
    """Make every linear layer of ``model`` compute in format ``name``; the head too, save in FP8.

    FP8 training leaves the head in the wider format. Parameters keep their names.
    """
    forward, backward = FORMATS[name]
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and not (name == "FP8" and path == "lm_head"):
            owner, _, last = path.rpartition(".")
            setattr(model.get_submodule(owner), last, _Emulated(module, forward, backward))
    return model
