"""The sizes of model families, in Hugging Face's names. No torch: everybody may import it.

A family added later has a file of its own, such as ``qwen3_shape.py``: a change here would change
the digest of every family (docs/adr/0064).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Shape:
    """The sizes that every family has. A subclass has a default for each, and sizes of its own."""

    #: The model's file in this folder and its class, and the path of its blocks.
    model: ClassVar[str]
    blocks: ClassVar[str]

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    sequence_length: int

    @property
    def initializer_range(self) -> float:
        """Standard deviation of the matrices as they start."""
        raise NotImplementedError

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class LlamaShape(Shape):
    """Sizes and constants that define one Llama-family function.

    The defaults are llama-1.4b, the fixed workload of the benchmark.
    """

    model: ClassVar[str] = "llama.Llama"
    blocks: ClassVar[str] = "model.layers"

    vocab_size: int = 32000
    hidden_size: int = 3200
    intermediate_size: int = 6400
    num_hidden_layers: int = 12
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    sequence_length: int = 256
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.02
    padding_idx: int | None = 0
    #: Whether the feed-forward is SwiGLU, with three matrices.
    gated: ClassVar[bool] = True


@dataclass(frozen=True)
class UngatedLlamaShape(LlamaShape):
    """A Llama whose feed-forward has two matrices with exact GELU between them."""

    gated: ClassVar[bool] = False


@dataclass(frozen=True)
class Gpt2Shape(Shape):
    """Sizes and constants that define one GPT-2-family function; the defaults are GPT-2 small's.

    Every position has a learned vector, so a sequence is as long as ``max_position_embeddings`` at
    most.
    """

    model: ClassVar[str] = "gpt2.Gpt2"
    blocks: ClassVar[str] = "transformer.h"

    vocab_size: int = 50304
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    sequence_length: int = 1024
    max_position_embeddings: int = 1024
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02


@dataclass(frozen=True)
class BertShape(Shape):
    """Sizes and constants that define one BERT-family function; the defaults are BERT base's.

    A sequence is as long as ``max_position_embeddings`` at most, and holds two sentences, which
    ``type_vocab_size`` tells apart.
    """

    model: ClassVar[str] = "bert.Bert"
    blocks: ClassVar[str] = "bert.encoder.layer"

    vocab_size: int = 64000
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    sequence_length: int = 512
    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    #: Dropout of embeddings, attention weights and both branches of a layer.
    dropout: float = 0.1
