"""Causal attention for host processors, written out in matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from llmb.reference.attention import CausalAttention

#: Largest number of tokens for this way: at 1,024 tokens both ways take the same time.
LONGEST = 512
#: Most probabilities that a layer keeps for its backward pass: 32 MiB of bfloat16. Above this size
#: memory counts more than time.
MOST_SCORES = 2**24


class _Attend(torch.autograd.Function):
    """Causal attention of ``[B heads, T, head_dim]``: scores and softmax in float32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length, ctx.scale = q.shape[1], q.shape[2] ** -0.5
        mask = torch.full((length, length), -torch.inf, device=q.device).triu(1)
        mask = mask.expand(len(q), length, length)
        scores = torch.baddbmm(mask, q.float(), k.float().transpose(1, 2), alpha=ctx.scale)
        shares = scores.softmax(-1).to(v.dtype)
        ctx.save_for_backward(q, k, v, shares)
        return torch.bmm(shares, v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (gradient,) = gradients
        q, k, v, shares = ctx.saved_tensors
        of_shares = torch.bmm(gradient, v.transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, shares.dtype)
        zero = q.new_zeros(())
        return (
            torch.baddbmm(zero, of_scores, k, beta=0, alpha=ctx.scale),
            torch.baddbmm(zero, of_scores.transpose(1, 2), q, beta=0, alpha=ctx.scale),
            torch.bmm(shares.transpose(1, 2), gradient),
        )


class WrittenOutAttention(CausalAttention):
    """Scores, softmax and sum as products of full matrices, in the cases with a gain in speed.

    In bfloat16, forward and backward together take half the time of torch 2.13's CPU kernel at 256
    and 512 tokens, and are as exact: for a sharp softmax, scores rounded to bfloat16 would be ten
    times as far off (``benchmarks/RESULTS.md``). Float32, a cache, shared key-value heads and long
    sequences use torch's kernel.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend like the reference, with the same arguments and result."""
        batch, heads, length, width = q.shape
        few = length <= LONGEST and batch * heads * length * length <= MOST_SCORES
        if v.dtype != torch.bfloat16 or mask is not None or k.shape != q.shape or not few:
            return super().forward(q, k, v, mask)
        flat = (batch * heads, length, width)
        with torch.autocast(q.device.type, enabled=False):  # autocast would narrow the scores
            # Under autocast q and k are float32 after the rotation.
            q, k, v = (one.to(v.dtype).reshape(flat) for one in (q, k, v))
            attended: Tensor = _Attend.apply(q, k, v)  # type: ignore[no-untyped-call]
        return attended.view(batch, heads, length, width)


def write_out_attention(model: nn.Module) -> None:
    """Replace the attention of every block of ``model`` by the written-out form, in place."""
    for name, module in list(model.named_modules()):
        if type(module) is CausalAttention:
            model.set_submodule(name, WrittenOutAttention())
