"""Model families in the view of the probe ``pairs``: sizes, and names of the matrices.

The norms of GPT-2 and BERT subtract the mean of a token's channels. Every matrix that reads, writes
or embeds hidden channels therefore has a mirrored half: the second half of the channels equals the
first half with the sign flipped. The means of activations and of gradients are then zero, and the
probe is laid out in the first half. GPT-2 and BERT also use the word embedding as the head:
position vectors distinguish tokens, and the head is read in words that are not in the input.

Qwen3 with a tied head has no position vectors: one parameter is embedding and head. Rows of the
lower half of the vocabulary are the embedding, the other rows the head. Qwen3 norms each head of
queries and keys: vectors that differ in size alone are equal after the norm.

BERT has an additional matrix between the last norm and the head, the "transform", followed by GELU
and a norm. BERT's pooler, sentence-order head and token types are zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from llmb.families import TRANSFORM, Family, family_of
from llmb.observe import probes
from llmb.reference.shapes import Shape

_WRITERS = ("o", "down")


@dataclass(frozen=True)
class PairsFamily:
    """A model in the view of the probe: matrices by kind ("q", "up", "head") and layer."""

    shape: Shape

    @cached_property
    def family(self) -> Family[Any]:
        """The family object of the model's kind, such as Llama or BERT."""
        return family_of(self.shape)

    @property
    def gated(self) -> bool:
        """Whether the feed-forward has a gate."""
        return self.family.is_gated(self.shape)

    @property
    def shared(self) -> bool:
        """Whether one parameter is the only embedding and the head."""
        return self.family.tied and self.name("embedding", 0) == self.name("head", 0)

    @property
    def normed(self) -> bool:
        """Whether the queries and keys of a head are normed."""
        return self.family.query_norm is not None

    @property
    def transformed(self) -> bool:
        """Whether a matrix, GELU and a norm stand between the last norm and the head."""
        return TRANSFORM in self.family.matrices

    @property
    def last_gain(self) -> str | None:
        """The gain of the norm after the transform; the probe's value differs from 1."""
        return self.family.last_norm if self.transformed else None

    @property
    def key_value_heads(self) -> int:
        """The number of heads with own keys and values."""
        return self.family.key_value_heads(self.shape)

    @property
    def copies(self) -> int:
        """The number of copies of each term in a sum over hidden channels: 2 if mirrored.

        The second half of the hidden channels is then the first half with flipped signs.
        """
        return 2 if self.family.centred else 1

    @property
    def hidden(self) -> int:
        """The number of hidden channels that the probe is laid out in."""
        return self.shape.hidden_size // self.copies

    @property
    def readers(self) -> tuple[str, ...]:
        """The matrices of a layer that read the hidden channels."""
        return ("q", "k", "v", "gate", "up") if self.gated else ("q", "k", "v", "up")

    @cached_property
    def own(self) -> dict[tuple[str, int], probes.Channels]:
        """The output channels of each branch, by kind and layer of the branch's last matrix."""
        named = probes.channels(replace(self.shape, hidden_size=self.hidden))
        return {self._matrices[name][0]: channels for name, channels in named.items()}

    def is_query_norm(self, name: str) -> bool:
        """Tell whether ``name`` is the gain of the norm of a query head."""
        path = self.family.query_norm
        return path is not None and name.endswith(path.rpartition("{}")[2])

    def name(self, kind: str, layer: int) -> str:
        """Return the parameter that holds a matrix."""
        return self.family.matrices[kind].format(layer)

    def matrices(self, name: str) -> list[tuple[str, int]]:
        """Return the matrices inside parameter ``name``, by kind and layer; maybe an empty list."""
        return self._matrices.get(name, [])

    def product(self, kind: str) -> str:
        """Return the name of a matrix's product in the product table."""
        return self.family.product_names.get(kind, kind)

    def part(self, kind: str, value: Tensor) -> Tensor:
        """Return the rows of a parameter, or of a gradient, that form the matrix ``kind``."""
        if kind not in ("q", "k", "v") or not self.family.is_fused:
            return value
        return value.chunk(3)["qkv".index(kind)]

    def first_half(self, kind: str, like: Tensor) -> Tensor:
        """Return zeros for the hidden channels that the probe is laid out in, float32."""
        rows, columns = like.shape
        if kind in (*_WRITERS, TRANSFORM):
            rows //= self.copies
        if kind not in _WRITERS:
            columns //= self.copies
        return torch.zeros(rows, columns)

    def whole(self, kind: str, value: Tensor) -> Tensor:
        """Return the full parameter for ``value``, the filled-in result of ``first_half``."""
        if self.copies == 1:
            return value
        if kind in (*_WRITERS, TRANSFORM):
            value = torch.cat((value, -value), 0)
        return value if kind in _WRITERS else torch.cat((value, -value), 1)

    @cached_property
    def _matrices(self) -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = {}
        for kind, name in self.family.matrices.items():
            layers = range(self.shape.num_hidden_layers) if "{}" in name else (0,)
            for layer in layers:
                found.setdefault(name.format(layer), []).append((kind, layer))
        return found
