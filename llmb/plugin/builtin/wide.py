"""Products of 16-bit values in float32, for processors that have no 16-bit instructions.

torch multiplies bfloat16 there one number after another: llama-1.4b's products take 30 times as
long as in float32, and float16's are slow on most processors that have bfloat16. Here operands are
widened to float32, which is exact, multiplied and summed in float32, and the result is rounded once
to the 16-bit type: what a tensor core does. Weights are read at every use. Of a large weight a part
is widened at a time, so that memory holds no second copy of the model.
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
#: Elements of a weight that are widened at once: 64 MiB of float32. A fresh float32 copy of all of
#: llama-1.4b's head (410 MB) took 5 times as long, in page faults, as the same memory used again.
AT_ONCE = 2**24


class _WideProduct(torch.autograd.Function):
    """``x @ w.T + b`` of 16-bit ``x`` ``[..., k]``, ``w`` ``[n, k]``, ``b`` ``[n]`` or None.

    Sums are float32, forward and backward; output and gradients are rounded once. With ``at_once``
    0 a weight is widened whole, which a compiler can trace and a distributed tensor needs.
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
    """Yield the rows of ``w`` that are taken together, ``at_once`` elements at most."""
    step = max(1, at_once // w.shape[1])
    return (slice(first, min(first + step, len(w))) for first in range(0, len(w), step))


def _widened(w: Tensor, at_once: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of ``w`` and their values in float32, in memory that the next ones take again."""
    buffer: Tensor | None = None
    for rows in _parts(w, at_once):
        part = w[rows]
        if buffer is None:
            buffer = torch.empty(part.shape, dtype=torch.float32, device=w.device)
        yield rows, buffer[: len(part)].copy_(part)


def wide_linear(x: Tensor, w: Tensor, b: Tensor | None = None, at_once: int = AT_ONCE) -> Tensor:
    """Return ``F.linear(x, w, b)`` as this module computes it.

    Under autocast operands are rounded to its type first; float32 ones are multiplied as they are.
    """
    narrow = _narrow_of(w)
    if narrow not in NARROW:
        return F.linear(x, w, b)
    x, w, b = x.to(narrow), w.to(narrow), None if b is None else b.to(narrow)
    if type(w) not in (Tensor, nn.Parameter):  # a distributed tensor, or one that holds no memory
        at_once = 0
    with torch.autocast(x.device.type, enabled=False):
        out: Tensor = _WideProduct.apply(x, w, b, at_once)  # type: ignore[no-untyped-call]
    return out


def _narrow_of(value: Tensor) -> torch.dtype:
    """Return the type in which an operand like ``value`` comes to a product."""
    kind = value.device.type
    if value.dtype.is_floating_point and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return value.dtype


class WideLinear(nn.Linear):
    """A linear layer that computes as ``wide_linear``; its parameters are those it was made of."""

    at_once = AT_ONCE

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[..., k]`` to ``[..., n]``."""
        return wide_linear(x, self.weight, self.bias, self.at_once)


class WideHead(TiedHead):
    """A tied head that computes as ``wide_linear``."""

    at_once = AT_ONCE

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to logits with ``weight`` ``[vocab, hidden]``."""
        return wide_linear(x, weight, bias, self.at_once)


class WideAttention(CausalAttention):
    """Causal attention in float32, its result rounded once."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend as the reference does, its arguments and result."""
        narrow = _narrow_of(v)
        if narrow not in NARROW:
            return super().forward(q, k, v, mask)
        # Rounded first: under autocast q and k come in float32 from their rotation.
        q, k, v = (one.to(narrow).float() for one in (q, k, v))
        with torch.autocast(v.device.type, enabled=False):
            return super().forward(q, k, v, None if mask is None else mask.float()).to(narrow)


class WideSelfAttention(SelfAttention):
    """BERT's attention of every token to every other, in float32, its result rounded once."""

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
    """Let ``model`` multiply and attend in float32 wherever its operands have 16 bits, in place.

    ``traced``: a compiler will read the modules' code, which then widens every weight whole.
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
