"""The Llama model: one definition for every Llama-family workload.

Parameters carry the state-dict names of the Hugging Face Llama. The module has no buffers, so a
cast cannot touch the rotary tables. Any of ``embed_tokens``, ``norm`` and ``lm_head`` may be None
and any entry of ``layers`` deleted: what is left is a pipeline stage with unchanged names. Head
counts come from the width of the projections, so a tensor-parallel shard runs the same code.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .shapes import LlamaShape


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32 or wider and cast once at the end."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension of ``x``."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).to(x.dtype)


def rotary_tables(x: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin, each ``[sequence, head_dim]`` in ``x``'s dtype, for ``x`` ``[B, T, H]``.

    Angles are computed in float32 or wider (positions above 256 collapse in BF16) and the tables
    are cast once. Rotate-half layout: angle j serves dimensions j and j + head_dim / 2.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, device=x.device, dtype=wide) / head_dim
    position = torch.arange(x.shape[1], device=x.device, dtype=wide)
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

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q = rotate(self.q_proj(x).view(split).transpose(1, 2), cos, sin)  # [B, heads, T, head_dim]
        k = rotate(self.k_proj(x).view(split).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        grouped = q.shape[1] != k.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
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


class DecoderLayer(nn.Module):
    """Pre-norm block: attention, then feed-forward, each added to the residual."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this block, ``[B, T, hidden]``."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
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

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids ``[B, T]``, or in a later stage hidden states, to hidden states."""
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        cos, sin = rotary_tables(x, self.shape.head_dim, self.shape.rope_theta)
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        return x if self.norm is None else self.norm(x)


class Llama(nn.Module):
    """Causal language model with an untied head."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.model = LlamaModel(shape)
        self.lm_head: nn.Module | None = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the logits ``[B, T, vocab]``, or with ``labels`` ``[B, T]`` the scalar loss."""
        x = self.model(ids)
        if self.lm_head is not None:
            x = self.lm_head(x)
        return x if labels is None else causal_loss(x, labels)


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of predicting token t + 1 from position t, in logits' dtype.

    The last position of each sequence has no target: B * (T - 1) terms are averaged. Shifting the
    labels instead of slicing the logits saves a copy of ``[B, T, vocab]``.
    """
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)  # -100 is cross_entropy's ignore_index
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initial_value(name: str, shape: torch.Size, seed: int, model_shape: LlamaShape) -> Tensor:
    """Return parameter ``name`` as it starts: float32 on the CPU, a function of seed and name only.

    Matrices are N(0, initializer_range), norm gains are 1, the padding row of the embedding is 0.
    A stage, a shard or a verifier can make any one parameter without making the others.
    """
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    value = torch.empty(shape).normal_(0.0, model_shape.initializer_range, generator=generator)
    if name.endswith("embed_tokens.weight") and model_shape.padding_idx is not None:
        value[model_shape.padding_idx] = 0.0
    return value


def build_llama(
    shape: LlamaShape, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Llama:
    """Return the model with every parameter made in float32 on the CPU, then cast and moved.

    One parameter at a time per thread, so the peak above the finished model is a few matrices.
    """
    with torch.device("meta"):
        model = Llama(shape)

    def make(item: tuple[str, nn.Parameter]) -> None:
        name, empty = item
        owner = model.get_submodule(name.rpartition(".")[0])
        value = initial_value(name, empty.shape, seed, shape)
        owner.weight = nn.Parameter(value.to(device=device, dtype=dtype))

    # The largest first, so that none of them is left to one thread at the end.
    parameters = sorted(model.named_parameters(), key=lambda item: -item[1].numel())
    with ThreadPoolExecutor(max_workers=4) as pool:  # normal_ is serial and releases the GIL
        list(pool.map(make, parameters))
    return model
