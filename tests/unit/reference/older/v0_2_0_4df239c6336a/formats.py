"""Number formats emulated in plain torch: what an honest run in a format shows, in numbers.

Operands of every linear layer are rounded to the format; products and sums stay in the model's own
type. The audit measures the borders between classes of precision with this one emulator, never with
a vendor's own code: a format is data (``Element``).

Sources: OCP Microscaling Formats (MX) Specification v1.0, sections 5.2 to 5.4 and 6.3
(opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf); NVIDIA, Pretraining
Large Language Models with NVFP4 (arxiv.org/abs/2509.25149), section 2 and appendix C.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .elements import Element, Format
from .head import TiedHead

#: float32: explicit bits of the significand, bits of the exponent, its bias, and where it lies.
_MANTISSA, _EXPONENT, _BIAS, _POWER = 23, 8, 127, 0x7F800000
_TINY = torch.finfo(torch.float32).tiny
#: E8M0 holds powers of two from 2^-127; float32 has 2^-126 as its smallest normal number.
_LEAST_POWER, _MOST_POWER = -126, 127
#: Of the scale of a block in NVFP4.
_E4M3 = Element(4, 3, 448.0)


def round_to(value: Tensor, element: Element, dim: int = -1) -> Tensor:
    """Return ``value`` rounded to ``element`` and back, in its own type and shape.

    Blocks lie along ``dim``, the dimension that the product sums over; a last block may be shorter.
    """
    wide = value.float()
    if element.scale == "none":
        found = _rounded(wide, element)
    elif element.block is None:
        scale = _scale(wide.abs().amax(), element)
        found = _rounded(wide / scale, element) * scale
    else:
        found = _in_blocks(wide.movedim(dim, -1), element, element.block).movedim(-1, dim)
    return found.to(value.dtype)


def _in_blocks(wide: Tensor, element: Element, block: int) -> Tensor:
    """Return ``wide`` rounded in blocks of ``block`` elements of its last dimension."""
    length = wide.shape[-1]
    block = min(block, length)
    padded = F.pad(wide, (0, -length % block))
    blocks = padded.reshape(*padded.shape[:-1], -1, block)
    largest = blocks.abs().amax(-1, keepdim=True)
    if element.scale == "e4m3":
        # The largest block of the tensor gets the largest scale.
        whole = _quotient(largest.amax(), element.largest * _E4M3.largest)
        scale = _rounded(largest / element.largest / whole, _E4M3) * whole
        # A block that is too small for the smallest scale is zero.
        divided = torch.where(scale > 0, blocks / scale, torch.zeros_like(blocks))
    else:
        scale = _scale(largest, element)
        divided = blocks / scale
    return (_rounded(divided, element) * scale).flatten(-2)[..., :length]


def _scale(largest: Tensor, element: Element) -> Tensor:
    """Return the scale, any float32 or a power of two, of what has ``largest`` as its largest."""
    if element.scale == "float32":
        return _quotient(largest, element.largest)
    exponent = (largest.contiguous().view(torch.int32) >> _MANTISSA) - _BIAS  # floor(log2)
    exponent = exponent - (math.frexp(element.largest)[1] - 1)
    exponent = exponent.clamp(_LEAST_POWER, _MOST_POWER)
    return ((exponent + _BIAS) << _MANTISSA).view(torch.float32)


def _quotient(largest: Tensor, of: float) -> Tensor:
    return largest.clamp(min=_TINY * of) / of


def _rounded(value: Tensor, element: Element) -> Tensor:
    """Return ``value`` (float32) rounded to unscaled numbers of ``element``; NaN stays NaN."""
    size = value.abs()
    if element.exponent_bits == _EXPONENT:
        found = _shortened(size, element)
    else:
        found = _in_steps(size.clamp_(max=2 * element.binade_end), element)
    if element.scale == "none":
        found = found.masked_fill(found > element.largest, math.inf)
    else:
        found = found.clamp_(max=element.largest)
    return found.copysign_(value)


def _in_steps(size: Tensor, element: Element) -> Tensor:
    """Return ``size`` (0 or more, float32) rounded to the spacing of numbers of its exponent.

    A float32 that is 1.5 * 2^23 times as large as a spacing rounds what is added to it. Below the
    smallest normal number the spacing stays the same; without an exponent there is one spacing.
    """
    least = 2.0**element.least_exponent
    powers = (size.view(torch.int32) & _POWER).view(torch.float32).clamp_(min=least)
    if not element.exponent_bits:
        powers = torch.full_like(size, least)
    if element.rounding == "stochastic":
        spacing = powers * 2.0**-element.mantissa_bits
        size = (size + (_draws(size).float() * 2.0**-_MANTISSA - 0.5) * spacing).clamp_(min=0)
    magic = powers.mul_(1.5 * 2.0 ** (_MANTISSA - element.mantissa_bits))
    return (size + magic).sub_(magic)


def _shortened(size: Tensor, element: Element) -> Tensor:
    """Return ``size`` (0 or more, float32) with fewer bits of its significand."""
    bits, dropped = size.view(torch.int32), _MANTISSA - element.mantissa_bits
    if element.rounding == "stochastic":
        up = _draws(size) & ((1 << dropped) - 1)
    else:
        up = ((bits >> dropped) & 1).add_((1 << dropped >> 1) - 1)
    found = up.add_(bits).bitwise_and_(-1 << dropped).view(torch.float32)
    return torch.where(size.isnan(), size, found)


def _draws(like: Tensor) -> Tensor:
    """Return an int32 below 2^23 for each element of ``like``: the same on every device.

    From its place, by the finaliser of MurmurHash3 (github.com/aappleby/smhasher), in 64 bits.
    """
    low = 0xFFFFFFFF
    place = torch.arange(1, like.numel() + 1, device=like.device, dtype=torch.int64)
    place = ((place ^ (place >> 16)) * 0x85EBCA6B) & low
    place = ((place ^ (place >> 13)) * 0xC2B2AE35) & low
    place = (place ^ (place >> 16)) >> (32 - _MANTISSA)
    return place.to(torch.int32).view(like.shape)


class _Product(torch.autograd.Function):
    """``x @ w.T`` of rounded operands; backward blocks are made anew, along other dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, number_format: Format) -> Tensor:
        rounded = round_to(x, number_format.forward), round_to(w, number_format.forward)
        ctx.save_for_backward(*((x, w) if number_format.forward.block else rounded))
        ctx.number_format = number_format
        return F.linear(*rounded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        forward, backward = ctx.number_format.forward, ctx.number_format.gradient
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        if forward.block:
            w, inputs = round_to(w, forward, 0), round_to(inputs, forward, 0)
        of_x = round_to(grad, backward) @ w
        return of_x, round_to(rows, backward, 0).t() @ inputs, None


class _Emulated(nn.Module):
    """A linear layer whose operands are rounded."""

    def __init__(self, linear: nn.Linear, number_format: Format) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias: nn.Parameter | None = linear.bias
        self._format = number_format

    def forward(self, x: Tensor) -> Tensor:
        """Return the product in the emulated format; a bias is added in the type of ``x``."""
        out: Tensor = _Product.apply(x, self.weight, self._format)  # type: ignore[no-untyped-call]
        return out if self.bias is None else out + self.bias


class _EmulatedHead(nn.Module):
    """A tied head whose operands are rounded."""

    def __init__(self, number_format: Format) -> None:
        super().__init__()
        self._format = number_format

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the logits, their product in the emulated format."""
        out: Tensor = _Product.apply(x, weight, self._format)  # type: ignore[no-untyped-call]
        return out if bias is None else out + bias


def emulate(model: nn.Module, number_format: Format) -> nn.Module:
    """Make every linear layer of ``model`` compute in ``number_format``, the head if that says so.

    FP8 and narrower training leaves the head in the wider format. Parameters keep their names.
    """
    for path, module in list(model.named_modules()):
        new: nn.Module | None = None
        if not number_format.head and (path == "lm_head" or isinstance(module, TiedHead)):
            continue
        if isinstance(module, nn.Linear):
            new = _Emulated(module, number_format)
        elif isinstance(module, TiedHead):
            new = _EmulatedHead(number_format)
        if new is not None:
            owner, _, last = path.rpartition(".")
            setattr(model.get_submodule(owner), last, new)
    return model
