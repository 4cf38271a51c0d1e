"""Qwen3 (dense): a Llama with a norm of each query and key head, and heads of a size of their own.

Parameters have the names of Hugging Face's ``Qwen3ForCausalLM``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from llmb.errors import UsageError
from llmb.families.family import BlockBytes, ProbeParts, Size, Slice
from llmb.families.llama import LlamaConfig, LlamaFamily
from llmb.reference.qwen3_shape import Qwen3Shape, TiedQwen3Shape
from llmb.reference.shapes import LlamaShape, Shape

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Qwen3Config(LlamaConfig):
    """The ``config.json`` of a Qwen3 checkpoint."""

    required: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
    }

    use_sliding_window: bool = False

    def shape(self, folder: Path) -> Qwen3Shape:
        """Return the shape of the weights in ``folder``."""
        kind = TiedQwen3Shape if self.tie_word_embeddings else Qwen3Shape
        return kind(**self.sizes(folder), head_dim=self.head_dim or Qwen3Shape.head_dim)


class Qwen3Family(LlamaFamily):
    """Sizes, work and names of the models in ``llmb.reference.qwen3`` with an untied head."""

    name = "qwen3"
    title = "Qwen3"
    shapes: ClassVar[Mapping[str, type[Shape]]] = {"qwen3": Qwen3Shape}
    has_own_head_size = True
    query_norm = "model.layers.{}.self_attn.q_norm.weight"
    block_slices: ClassVar[Mapping[str, Slice]] = {
        **LlamaFamily.block_slices,
        "self_attn.q_norm": Slice.NORM_OF_HEADS,
        "self_attn.k_norm": Slice.NORM_OF_HEADS,
    }
    meanings: ClassVar[Mapping[str, str]] = {"head_dim": "Channels of an attention head."}
    follows: ClassVar[Mapping[str, tuple[str, int]]] = {}  # every size of Qwen3 has 8
    checkpoint = Qwen3Config

    def parameter_sizes(self, shape: LlamaShape) -> dict[str, Size]:
        """Return the size of every parameter."""
        layers = range(shape.num_hidden_layers)
        norms = [f"model.layers.{i}.self_attn.{kind}_norm.weight" for i in layers for kind in "qk"]
        return {**super().parameter_sizes(shape), **dict.fromkeys(norms, (shape.head_dim,))}

    def block_bytes(self, shape: LlamaShape, value: int, mixed: int) -> BlockBytes:
        """Return the bytes that a token of one block leaves."""
        queries = shape.num_attention_heads * shape.head_dim
        normed = queries + shape.num_key_value_heads * shape.head_dim
        wider = 2 * (queries - shape.hidden_size) * value
        kept = super().block_bytes(shape, value, mixed)
        return replace(kept, sliced=kept.sliced + wider + normed * 8)

    def check(self, shape: LlamaShape) -> None:
        """Refuse odd head sizes, and heads that cannot share keys and values."""
        if shape.head_dim % 2:
            raise UsageError(
                f"head_dim is {shape.head_dim}: rotary positions need an even head size"
            )
        super().check(shape)


class TiedQwen3Family(Qwen3Family):
    """Qwen3 models with one parameter as embedding and head. No stage could have both."""

    title = "Qwen3 with a tied head"
    shapes: ClassVar[Mapping[str, type[Shape]]] = {"qwen3-tied": TiedQwen3Shape}
    tied = True
    has_stages = False
    matrices: ClassVar[Mapping[str, str]] = {**LlamaFamily.matrices, "head": _EMBEDDING}
    other_slices: ClassVar[Mapping[str, Slice]] = {
        **LlamaFamily.other_slices,
        "lm_head": Slice.TIED_HEAD,
    }

    def parameter_sizes(self, shape: LlamaShape) -> dict[str, Size]:
        """Return the size of every parameter."""
        sizes = super().parameter_sizes(shape)
        del sizes[_HEAD]
        return sizes

    def probe_parts(self, shape: LlamaShape) -> ProbeParts:
        """Return the parameters that the isolating probes change."""
        out = super().probe_parts(shape).out
        return ProbeParts(out=out, embeddings=(), head=_EMBEDDING, tied=True)

    def is_dispensable(self, name: str) -> bool:
        """Tell whether ``name`` is the head: a copy of the embedding."""
        return name == _HEAD


FAMILIES = (Qwen3Family(), TiedQwen3Family())
