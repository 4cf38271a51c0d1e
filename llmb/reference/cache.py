"""The static key-value cache: what attention remembers of a sequence, in memory of a fixed size.

All of it is attended to at every token, behind a mask: shapes never change, so that an executor
compiles one program for every token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import CausalAttention
from .shapes import BertShape, Shape


@dataclass(frozen=True)
class CachedLayer:
    """The cache of one layer, as one pass through the model meets it."""

    #: ``[B, key-value heads, length, head_dim]`` each, written in place.
    keys: Tensor
    values: Tensor
    #: Where the tokens of this pass stand, int64 ``[n]``.
    positions: Tensor
    #: Added to the scores ``[n, length]``: 0 where a token may attend to a position, else -inf.
    mask: Tensor

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: CausalAttention) -> Tensor:
        """Store ``k`` and ``v`` ``[B, key-value heads, n, head_dim]`` and attend with ``q``.

        Query heads that share a key-value head are laid one after the other along the tokens, so
        that no key or value is repeated. Returns ``[B, heads, n, head_dim]``.
        """
        # Under autocast keys come in float32 from the rotation, values in the narrower format.
        self.keys.index_copy_(2, self.positions, k.to(self.keys.dtype))
        self.values.index_copy_(2, self.positions, v.to(self.values.dtype))
        batch, heads, tokens, width = q.shape
        shared = k.shape[1]
        mask = self.mask
        if heads != shared:
            q = q.reshape(batch, shared, heads // shared * tokens, width)
            if tokens > 1:  # one row serves all
                mask = mask.repeat(heads // shared, 1)
        y: Tensor = attention(q, self.keys, self.values, mask)
        return y.reshape(batch, heads, tokens, width)


@dataclass(frozen=True)
class KeyValueCache:
    """Keys and values of every layer, ``[B, key-value heads, length, head_dim]`` each."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    def at(self, positions: Tensor) -> list[CachedLayer]:
        """Return the layers' caches for tokens at ``positions``, int64 ``[n]`` on the device.

        A token attends to every position up to its own.
        """
        every = torch.arange(self.keys[0].shape[2], device=positions.device)
        unseen = every[None, :] > positions[:, None]
        mask = torch.zeros(unseen.shape, dtype=self.keys[0].dtype, device=positions.device)
        mask = mask.masked_fill(unseen, -torch.inf)
        return [
            CachedLayer(keys, values, positions, mask)
            for keys, values in zip(self.keys, self.values, strict=True)
        ]

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all memory of the cache: what passes through the model write in place."""
        return self.keys + self.values

    def clear(self) -> None:
        """Forget everything, in the same memory."""
        for tensor in self.tensors():
            tensor.zero_()


def empty_cache(
    shape: Shape,
    batch_size: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KeyValueCache:
    """Return the cache of ``batch_size`` sequences of at most ``length`` tokens, all zeros.

    ``dtype`` is that of the keys the model makes: that of its weights, or autocast's.
    """
    assert not isinstance(shape, BertShape), "it sees the tokens that come after, too"
    heads = getattr(shape, "num_key_value_heads", shape.num_attention_heads)
    size = (batch_size, heads, length, shape.head_dim)

    def tensors() -> tuple[Tensor, ...]:
        layers = range(shape.num_hidden_layers)
        return tuple(torch.zeros(size, dtype=dtype, device=device) for _ in layers)

    return KeyValueCache(tensors(), tensors())
