"""The GPT-2 model: learned positions, pre-norm LayerNorm, exact GELU, a head tied to the embedding.

Parameters carry the state-dict names of the Hugging Face GPT-2; its matrices are stored there as
``[in, out]``, here as ``[out, in]``. Dropout is 0, as in the benchmarks that use it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CausalAttention
from .cache import CachedLayer, KeyValueCache
from .head import TiedHead
from .loss import causal_loss
from .shapes import Gpt2Shape


class Attention(nn.Module):
    """Causal self-attention; one matrix makes queries, keys and values."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.c_attn = nn.Linear(shape.hidden_size, 3 * shape.hidden_size)
        self.c_proj = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.core_attention = CausalAttention()

    def forward(self, x: Tensor, cached: CachedLayer | None = None) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``, and to what is ``cached``."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q, k, v = (y.view(split).transpose(1, 2) for y in self.c_attn(x).chunk(3, dim=-1))
        if cached is None:
            y = self.core_attention(q, k, v)
        else:
            y = cached.attend(q, k, v, self.core_attention)
        out: Tensor = self.c_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class MLP(nn.Module):
    """Feed-forward with exact (erf) GELU."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.c_fc = nn.Linear(shape.hidden_size, shape.intermediate_size)
        self.c_proj = nn.Linear(shape.intermediate_size, shape.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` through both matrices."""
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x)))
        return out


class Block(nn.Module):
    """Pre-norm block: attention, then feed-forward, each added to the residual."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_epsilon)
        self.attn = Attention(shape)
        self.ln_2 = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_epsilon)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, cached: CachedLayer | None = None) -> Tensor:
        """Return the residual stream after this block, ``[B, T, hidden]``."""
        x = x + (self.attn(self.ln_1(x)) if cached is None else self.attn(self.ln_1(x), cached))
        return x.add(self.mlp(self.ln_2(x)))


class Transformer(nn.Module):
    """Embeddings of tokens and positions, blocks, final norm."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.wpe = nn.Embedding(shape.max_position_embeddings, shape.hidden_size)
        # A dict keyed by the block's number: deleting entries renames nothing.
        self.h = nn.ModuleDict({str(i): Block(shape) for i in range(shape.num_hidden_layers)})
        self.ln_f = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_epsilon)

    def forward(
        self, ids: Tensor, cache: KeyValueCache | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Map token ids ``[B, T]`` to hidden states ``[B, T, hidden]``.

        With a ``cache`` of as many blocks they continue what it holds, at ``positions`` ``[T]``.
        """
        if cache is None:
            position = torch.arange(ids.shape[1], device=ids.device)
            x = self.wte(ids) + self.wpe(position)
            for block in self.h.values():
                x = block(x)
        else:
            assert positions is not None, "a cache and the positions of the tokens come together"
            x = self.wte(ids) + self.wpe(positions)
            for block, cached in zip(self.h.values(), cache.at(positions), strict=True):
                x = block(x, cached)
        out: Tensor = self.ln_f(x)
        return out


class Gpt2(nn.Module):
    """Causal language model whose head is the embedding of the tokens."""

    def __init__(self, shape: Gpt2Shape) -> None:
        super().__init__()
        self.transformer = Transformer(shape)
        self.lm_head = TiedHead()

    def forward(
        self,
        ids: Tensor,
        labels: Tensor | None = None,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits ``[B, T, vocab]``, or with ``labels`` ``[B, T]`` the scalar loss.

        With a ``cache`` the tokens stand at ``positions``, int64 ``[T]`` on the device, and follow
        what it holds of those before: the logits ``[B, vocab]`` are those after the last of them.
        """
        if cache is None:
            x = self.transformer(ids)
        else:
            x = self.transformer(ids, cache, positions)[:, -1]
        logits: Tensor = self.lm_head(x, self.transformer.wte.weight)
        return logits if labels is None else causal_loss(logits, labels)
