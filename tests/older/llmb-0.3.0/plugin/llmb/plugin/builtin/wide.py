"""Products of 16-bit values in float32, for processors that have no 16-bit instructions.

On such processors torch multiplies bfloat16 one number after another: llama-1.4b's products take 30
times as long as in float32. float16 is slow on most processors with bfloat16, too. This module
widens operands to float32 (exact), multiplies and sums in float32, and rounds the result once to
the 16-bit type, as a tensor core does. Weights are read at every use. Only a part of a large weight
is widened at a time: memory holds no second copy of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.reference.attention import CausalAttention
from llmb.reference.bert import SelfAttention
from llmb.reference.head import TiedHead

NARROW = (torch.bfloat16, torch.float16)
#: Elements of a weight that are widened at once: 64 MiB of float32. A new float32 copy of all of
#: llama-1.4b's head (410 MB) took 5 times as long, in page faults, as reused memory.
AT_ONCE = 2**24


class _WideProduct(torch.autograd.Function):
    """``x @ w.T + b`` of 16-bit ``x`` ``[..., k]``, ``w`` ``[n, k]``, ``b`` ``[n]`` or None.

    Sums are float32, forward and backward; output and gradients are rounded once. With ``at_once``
    0 a weight is widened in full: a compiler can trace this form, and distributed tensors need it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, at_once: int) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.has_bias, ctx.at_once = b is not None, at_once
        wide_x, wide_b = x.float(), None if b is None else b.float()
        if not at_once:
            return F.linear(wide_x, w.float(), wide_b).to(x.dtype)
        out = x.new_empty((*x.shape[:-1], len(w)))
        for rows, wide_w in _widened(w, at_once):
            out[..., rows] = F.linear(wide_x, wide_w, None if wide_b is None else wide_b[rows])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        needs_x, needs_w, needs_b, _ = ctx.needs_input_grad
        of_x = of_w = of_b = None
        with torch.autocast(x.device.type, enabled=False):
            wide = gradients[0].flatten(0, -2).float()  # [tokens, n]
            if needs_x:
                of_x = _of_input(wide, w, ctx.at_once).to(x.dtype).view(x.shape)
            if needs_w:
                of_w = _of_weight(wide, x.flatten(0, -2).float(), w, ctx.at_once)
            if needs_b and ctx.has_bias:
                of_b = wide.sum(0).to(x.dtype)
        return of_x, of_w, of_b, None


def _of_input(gradient: Tensor, w: Tensor, at_once: int) -> Tensor:
    """Return ``gradient @ w`` in float32, ``[tokens, k]``."""
    if not at_once:
        return gradient @ w.float()
    total = gradient.new_zeros(len(gradient), w.shape[1])
    for rows, wide_w in _widened(w, at_once):
        total.addmm_(gradient[:, rows], wide_w)
    return total


def _of_weight(gradient: Tensor, wide_x: Tensor, w: Tensor, at_once: int) -> Tensor:
    """Return ``gradient.T @ x``, rounded to the type of ``w`` ``[n, k]``."""
    if not at_once:
        return (gradient.t() @ wide_x).to(w.dtype)
    found = torch.empty_like(w)
    for rows in _parts(w, at_once):
        found[rows] = gradient[:, rows].t() @ wide_x
    return found


def _parts(w: Tensor, at_once: int) -> Iterator[slice]:
    """Yield slices of rows of ``w`` with at most ``at_once`` elements each."""
    step = max(1, at_once // w.shape[1])
    return (slice(first, min(first + step, len(w))) for first in range(0, len(w), step))


def _widened(w: Tensor, at_once: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield row slices of ``w`` with their float32 values; the next slice overwrites the values."""
    buffer: Tensor | None = None
    for rows in _parts(w, at_once):
        part = w[rows]
        if buffer is None:
            buffer = torch.empty(part.shape, dtype=torch.float32, device=w.device)
        yield rows, buffer[: len(part)].copy_(part)


def wide_linear(x: Tensor, w: Tensor, b: Tensor | None = None, at_once: int = AT_ONCE) -> Tensor:
    """Return ``F.linear(x, w, b)`` as this module computes the product.

    Under autocast operands are first rounded to autocast's type; float32 operands stay float32.
    """
    narrow = _narrow_of(w)
    if narrow not in NARROW:
        return F.linear(x, w, b)
    x, w, b = x.to(narrow), w.to(narrow), None if b is None else b.to(narrow)
    if type(w) not in (Tensor, nn.Parameter):  # a distributed tensor, or a tensor without memory
        at_once = 0
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = _WideProduct.apply(x, w, b, at_once)  # type: ignore[no-untyped-call]
    return out


def _narrow_of(value: Tensor) -> torch.dtype:
    """Return the type of an operand like ``value`` in a product, autocast included."""
    kind = value.device.type
    if value.dtype.is_floating_point and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return value.dtype


class WideLinear(nn.Linear):
    """A linear layer that computes with ``wide_linear`` on the original layer's parameters."""

    at_once = AT_ONCE

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[..., k]`` to ``[..., n]``."""
        return wide_linear(x, self.weight, self.bias, self.at_once)


class WideHead(TiedHead):
    """A tied head that computes with ``wide_linear``."""

    at_once = AT_ONCE

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to logits with ``weight`` ``[vocab, hidden]``."""
        return wide_linear(x, weight, bias, self.at_once)


class WideAttention(CausalAttention):
    """Causal attention in float32, its result rounded once."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend like the reference, with the same arguments and result."""
        narrow = _narrow_of(v)
        if narrow not in NARROW:
            return super().forward(q, k, v, mask)
        # Rounded first: under autocast the rotation returns q and k in float32.
        q, k, v = (one.to(narrow).float() for one in (q, k, v))
        with torch.autocast(v.device.type, enabled=False):
            return super().forward(q, k, v, None if mask is None else mask.float()).to(narrow)


class WideSelfAttention(SelfAttention):
    """BERT's attention between all tokens of a sequence, in float32, its result rounded once."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``."""
        narrow = _narrow_of(x)
        if narrow not in NARROW:
            return super().forward(x)
        split = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (
            linear(x).to(narrow).float().view(split).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        with torch.autocast(x.device.type, enabled=False):
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).to(narrow)
        return y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)


def widen_products(model: nn.Module, *, traced: bool = False) -> None:
    """Let ``model`` multiply and attend in float32 for 16-bit operands, in place.

    ``traced``: a compiler will trace the modules; every weight is then widened in full.
    """
    made: dict[type[nn.Module], Any] = {TiedHead: WideHead, CausalAttention: WideAttention}
    for name, module in list(model.named_modules()):
        new: nn.Module | None = None
        if type(module) is nn.Linear:
            new = WideLinear(module.in_features, module.out_features, device="meta")
            new.weight, new.bias = module.weight, module.bias
        elif type(module) is SelfAttention:
            new = WideSelfAttention.__new__(WideSelfAttention)
            new.__dict__ = module.__dict__
        elif type(module) in made:
            new = made[type(module)]()
        if new is not None:
            if traced and isinstance(new, (WideLinear, WideHead)):
                new.at_once = 0
            model.set_submodule(name, new.train(module.training))
