"""The Llama model: one definition for every Llama-family workload.

Parameters carry the state-dict names of the Hugging Face Llama. The module has no buffers, so a
cast cannot touch the rotary tables. Any of ``embed_tokens``, ``norm`` and ``lm_head`` may be None
and any entry of ``layers`` deleted: what is left is a pipeline stage with unchanged names. Head
counts come from the width of the projections, so a tensor-parallel shard runs the same code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import CausalAttention
from .cache import CachedLayer, KeyValueCache
from .loss import causal_loss
from .shapes import LlamaShape


def wide_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which norms and angles of ``x`` are computed: float32, or wider."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 or wider and cast once at the end."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        wide = x.to(wide_dtype(x))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).to(x.dtype)


def rotary_tables(
    x: Tensor, head_dim: int, theta: float, positions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each ``[sequence, head_dim]`` in ``x``'s dtype, for ``x`` ``[B, T, H]``.

    Angles are computed in float32 or wider (positions above 256 collapse in BF16) and the tables
    are cast once. Rotate-half layout: angle j serves dimensions j and j + head_dim / 2. The tokens
    stand at 0, 1, ... or at ``positions``, int64 ``[T]``.
    """
    wide = wide_dtype(x)
    exponent = torch.arange(0, head_dim, 2, device=x.device, dtype=wide) / head_dim
    if positions is None:
        position = torch.arange(x.shape[1], device=x.device, dtype=wide)
    else:
        position = positions.to(wide)
    angle = torch.outer(position, theta**-exponent)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to ``x`` ``[B, heads, T, head_dim]``, rotate-half convention."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Causal self-attention with rotary positions and grouped-query heads."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self.core_attention = CausalAttention()

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cached: CachedLayer | None = None
    ) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``, and to what is ``cached``."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)  # [B, heads, T, head_dim]
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if cached is None:
            y = self.core_attention(q, k, v)
        else:
            y = cached.attend(q, k, v, self.core_attention)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class MLP(nn.Module):
    """SwiGLU feed-forward: ``down(silu(gate(x)) * up(x))``."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` through the gated network."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class UngatedMLP(nn.Module):
    """Feed-forward of two matrices with exact (erf) GELU: ``down(gelu(up(x)))``."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``x`` ``[B, T, hidden]`` through both matrices."""
        out: Tensor = self.down_proj(F.gelu(self.up_proj(x)))
        return out


class DecoderLayer(nn.Module):
    """Pre-norm block: attention, then feed-forward, each added to the residual."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape) if shape.gated else UngatedMLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cached: CachedLayer | None = None
    ) -> Tensor:
        """Return the residual stream after this block, ``[B, T, hidden]``."""
        if cached is None:
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        else:
            x = x + self.self_attn(self.input_layernorm(x), cos, sin, cached)
        return x.add(self.mlp(self.post_attention_layernorm(x)))


class LlamaModel(nn.Module):
    """Embedding, decoder layers and final norm."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens: nn.Module | None = nn.Embedding(
            shape.vocab_size, shape.hidden_size, padding_idx=shape.padding_idx
        )
        # A dict keyed by the layer's number: deleting entries renames nothing.
        self.layers = nn.ModuleDict(
            {str(i): DecoderLayer(shape) for i in range(shape.num_hidden_layers)}
        )
        self.norm: nn.Module | None = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, cache: KeyValueCache | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Map token ids ``[B, T]``, or in a later stage hidden states, to hidden states.

        With a ``cache`` of as many layers they continue what it holds, at ``positions`` ``[T]``.
        """
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        cos, sin = rotary_tables(x, self.shape.head_dim, self.shape.rope_theta, positions)
        if cache is None:
            for layer in self.layers.values():
                x = layer(x, cos, sin)
        else:
            assert positions is not None, "a cache and the positions of the tokens come together"
            for layer, cached in zip(self.layers.values(), cache.at(positions), strict=True):
                x = layer(x, cos, sin, cached)
        return x if self.norm is None else self.norm(x)


class Llama(nn.Module):
    """Causal language model with an untied head."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = LlamaModel(shape)
        self.lm_head: nn.Module | None = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

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
        x = self.model(ids) if cache is None else self.model(ids, cache, positions)[:, -1]
        if self.lm_head is not None:
            x = self.lm_head(x)
        return x if labels is None else causal_loss(x, labels)
