"""The Qwen3 model (dense): a Llama that norms each head of queries and keys before it is rotated.

Parameters carry the state-dict names of the Hugging Face Qwen3. Stages, shards and caches work as
in ``llama.py``.
"""

from __future__ import annotations

from torch import Tensor, nn

from .cache import CachedLayer, KeyValueCache
from .head import TiedHead
from .llama import Attention, DecoderLayer, Llama, RMSNorm, rotate
from .loss import causal_loss
from .qwen3_shape import Qwen3Shape


class Qwen3Attention(Attention):
    """Causal self-attention whose queries and keys have a root mean square of one in each head."""

    def __init__(self, shape: Qwen3Shape) -> None:
        super().__init__(shape)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cached: CachedLayer | None = None
    ) -> Tensor:
        """Attend within each sequence of ``x`` ``[B, T, hidden]``, and to what is ``cached``."""
        batch, length, _ = x.shape
        split = (batch, length, -1, self.head_dim)
        q, k = self.q_norm(self.q_proj(x).view(split)), self.k_norm(self.k_proj(x).view(split))
        q = rotate(q.transpose(1, 2), cos, sin)  # [B, heads, T, head_dim]
        k = rotate(k.transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(split).transpose(1, 2)
        if cached is None:
            y = self.core_attention(q, k, v)
        else:
            y = cached.attend(q, k, v, self.core_attention)
        out: Tensor = self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))
        return out


class Qwen3Layer(DecoderLayer):
    """Pre-norm block: attention, then feed-forward, each added to the residual."""

    def __init__(self, shape: Qwen3Shape) -> None:
        super().__init__(shape)
        self.self_attn = Qwen3Attention(shape)


class Qwen3(Llama):
    """Causal language model with an untied head."""

    def __init__(self, shape: Qwen3Shape) -> None:
        super().__init__(shape)
        layers = {str(i): Qwen3Layer(shape) for i in range(shape.num_hidden_layers)}
        self.model.layers = nn.ModuleDict(layers)


class TiedQwen3(Qwen3):
    """Causal language model whose head is the embedding of the tokens: no stage is cut from it."""

    def __init__(self, shape: Qwen3Shape) -> None:
        super().__init__(shape)
        self.lm_head = TiedHead()

    def forward(
        self,
        ids: Tensor,
        labels: Tensor | None = None,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Return the logits ``[B, T, vocab]``, or with ``labels`` ``[B, T]`` the scalar loss.

        With a ``cache`` the logits are those after the last token, as in ``Llama.forward``.
        """
        x = self.model(ids) if cache is None else self.model(ids, cache, positions)[:, -1]
        embedding, head = self.model.embed_tokens, self.lm_head
        assert embedding is not None
        assert head is not None
        logits: Tensor = head(x, embedding.weight)
        return logits if labels is None else causal_loss(logits, labels)
