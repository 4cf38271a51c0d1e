"""Attention between its projections: it has no weights of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Each token attends to itself and those before; a module so that it can be replaced."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with ``q`` ``[B, heads, T, head_dim]``; the result has its size.

        ``k`` and ``v`` are ``[B, key-value heads, length, head_dim]``; as many query heads share
        each. ``mask`` ``[T, length]`` is added to the scores and takes the place of the causal one.
        """
        causal = mask is None
        if q.shape[1] == k.shape[1]:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
