"""The sizes of every model family, in Hugging Face's names. No torch: everybody may import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Union


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and constants that define one Llama-family function.

    The defaults are llama-1.4b, the fixed workload of the benchmark.
    """

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

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class UngatedLlamaShape(LlamaShape):
    """A Llama whose feed-forward has two matrices with exact GELU between them."""

    gated: ClassVar[bool] = False


@dataclass(frozen=True)
class Gpt2Shape:
    """Sizes and constants that define one GPT-2-family function; the defaults are GPT-2 small's.

    Every position has a learned vector, so a sequence is as long as ``max_position_embeddings`` at
    most.
    """

    vocab_size: int = 50304
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    sequence_length: int = 1024
    max_position_embeddings: int = 1024
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class BertShape:
    """Sizes and constants that define one BERT-family function; the defaults are BERT base's.

    A sequence is as long as ``max_position_embeddings`` at most, and holds two sentences, which
    ``type_vocab_size`` tells apart.
    """

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

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads


Shape = Union[LlamaShape, Gpt2Shape, BertShape]  # noqa: UP007  (evaluated on Python 3.10, too)

#: Every family of models by its name.
FAMILIES: dict[str, type[Shape]] = {
    "llama": LlamaShape,
    "llama-ungated": UngatedLlamaShape,
    "gpt2": Gpt2Shape,
    "bert": BertShape,
}
