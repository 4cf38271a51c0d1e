"""Causal attention between its projections: it has no weights of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Each token attends to itself and those before; a module so that it can be replaced."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend with ``q`` ``[B, heads, T, head_dim]``; the result has its size.

        ``k`` and ``v`` are ``[B, key-value heads, T, head_dim]``; as many query heads share each.
        """
        if q.shape[1] == k.shape[1]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
