"""Causal attention for host processors, written out in matrix products."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from llmb.reference.attention import CausalAttention

#: Scores a layer keeps for its backward pass, at most: 32 MiB of bfloat16. Beyond it memory counts
#: for more than time.
MOST_SCORES = 2**24


class WrittenOutAttention(CausalAttention):
    """Scores, softmax and sum as products of whole matrices, where that is the faster way.

    In bfloat16 it is 1.3 to 2.9 times as fast, forward and backward, as the kernel torch 2.13 has
    for CPUs, at 256 to 4096 tokens (``benchmarks/RESULTS.md``); in float32 the kernel often wins.
    Scores are rounded to bfloat16 once, as in every model that writes attention out; the softmax
    computes in float32.
    """

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend as the reference does, its arguments and result."""
        batch, heads, tokens, width = q.shape
        length = k.shape[2]
        few = batch * heads * tokens * length <= MOST_SCORES
        if v.dtype != torch.bfloat16 or k.shape[1] != heads or not few:
            return super().forward(q, k, v, mask)
        if mask is None:
            mask = torch.full((tokens, length), -torch.inf, dtype=q.dtype, device=q.device).triu(1)
        scores = torch.baddbmm(
            mask.expand(batch * heads, tokens, length),
            q.reshape(batch * heads, tokens, width),
            k.reshape(batch * heads, length, width).transpose(1, 2),
            alpha=width**-0.5,
        )
        return torch.bmm(scores.softmax(-1), v.reshape(batch * heads, length, width)).view(q.shape)


def write_out_attention(model: nn.Module) -> None:
    """Exchange the attention of every block of ``model`` for the written-out one, in place."""
    for name, module in list(model.named_modules()):
        if type(module) is CausalAttention:
            model.set_submodule(name, WrittenOutAttention())
