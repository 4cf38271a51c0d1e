"""A head that is the embedding of the tokens: it has no weights of its own."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class TiedHead(nn.Module):
    """The product that makes the logits, a module so that it can be replaced like any other."""

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` to logits with ``weight`` ``[vocab, hidden]``."""
        return F.linear(x, weight, bias)
