"""The sizes of Qwen3 (dense), in Hugging Face's names. No torch: everybody may import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .shapes import LlamaShape


@dataclass(frozen=True)
class Qwen3Shape(LlamaShape):
    """Sizes and constants that define one Qwen3-family function; the defaults are Qwen3-8B's.

    Heads have a size of their own: of Qwen3-0.6B 16 heads of 128 stand in 1,024 channels.
    """

    model: ClassVar[str] = "qwen3.Qwen3"

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 36
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    sequence_length: int = 4096
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    initializer_range: float = 0.02
    padding_idx: int | None = None
    head_dim: int = 128


@dataclass(frozen=True)
class TiedQwen3Shape(Qwen3Shape):
    """A Qwen3 whose head is the embedding of the tokens."""

    model: ClassVar[str] = "qwen3.TiedQwen3"
