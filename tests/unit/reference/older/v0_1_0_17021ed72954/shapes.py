"""The sizes of a Llama-family model, in Hugging Face's names. No torch: everybody may import it."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads
