"""Llama: RMSNorm, rotary positions, grouped key-value heads, a gated feed-forward or a plain one.

Parameters have the names of Hugging Face's ``LlamaForCausalLM``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import PositiveFloat, PositiveInt

from llmb.errors import UsageError
from llmb.families.family import BlockBytes, Family, Gemm, ProbeParts, Size, Slice
from llmb.families.hugging_face import HuggingFaceConfig
from llmb.reference.shapes import LlamaShape, Shape, UngatedLlamaShape


class LlamaConfig(HuggingFaceConfig):
    """The ``config.json`` of a Llama checkpoint."""

    required: ClassVar[Mapping[str, object]] = {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    max_position_embeddings: PositiveInt = 2048
    rms_norm_eps: PositiveFloat = 1e-6
    rope_theta: PositiveFloat = 10000.0
    #: Both names of one thing; the second since transformers 5, with the base inside.
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    def shape(self, folder: Path) -> LlamaShape:
        """Return the shape of the weights in ``folder``."""
        shape = LlamaShape(**self.sizes(folder))
        uneven = shape.hidden_size % shape.num_attention_heads
        if uneven or self.head_dim not in (None, shape.head_dim):
            raise UsageError(
                f"--weights {str(folder)!r}: heads of {self.head_dim} are not hidden_size "
                f"{shape.hidden_size} / num_attention_heads {shape.num_attention_heads}, as they "
                "are in the llama of llmb"
            )
        return shape

    def sizes(self, folder: Path) -> dict[str, Any]:
        """Return the sizes of the weights in ``folder``, by their names in a shape."""
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads or self.num_attention_heads,
            "sequence_length": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_base(folder),
            "initializer_range": self.initializer_range,
            "padding_idx": self.pad_token_id,
        }

    def rope_base(self, folder: Path) -> float:
        """Return the base of the rotary angles; they are not scaled here."""
        stated = {**(self.rope_scaling or {}), **(self.rope_parameters or {})}
        kind = stated.get("rope_type", stated.get("type", "default"))
        if kind != "default" or stated.get("partial_rotary_factor", 1.0) != 1.0:
            what = f"scaled ({kind})" if kind != "default" else "applied to a part of each head"
            raise UsageError(
                f"--weights {str(folder)!r}: its rotary positions are {what}; llmb's are plain, "
                "and would make another model of these weights: use weights without rope scaling"
            )
        theta = stated.get("rope_theta", self.rope_theta)
        if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not theta > 0:
            raise UsageError(
                f"--weights {str(folder)!r}: rope_theta is {theta!r}, which is no base"
            )
        return float(theta)


class LlamaFamily(Family[LlamaShape]):
    """Sizes, work and names of the models in ``llmb.reference.llama``."""

    name = "llama"
    title = "Llama"
    shapes: ClassVar[Mapping[str, type[Shape]]] = {
        "llama": LlamaShape,
        "llama-ungated": UngatedLlamaShape,
    }
    has_stages = True
    last_norm = "model.norm.weight"
    matrices: ClassVar[Mapping[str, str]] = {
        "embedding": "model.embed_tokens.weight",
        "head": "lm_head.weight",
        **{kind: f"model.layers.{{}}.self_attn.{kind}_proj.weight" for kind in "qkvo"},
        **{kind: f"model.layers.{{}}.mlp.{kind}_proj.weight" for kind in ("gate", "up", "down")},
    }
    block_slices: ClassVar[Mapping[str, Slice]] = {
        "input_layernorm": Slice.NORM,
        "self_attn": Slice.GATHERED_OF_3,
        "self_attn.q_proj": Slice.COLUMNS,
        "self_attn.k_proj": Slice.COLUMNS,
        "self_attn.v_proj": Slice.COLUMNS,
        "self_attn.o_proj": Slice.ROWS,
        "post_attention_layernorm": Slice.NORM,
        "mlp": Slice.GATHERED,
        "mlp.up_proj": Slice.COLUMNS,
        "mlp.down_proj": Slice.ROWS,
    }
    other_slices: ClassVar[Mapping[str, Slice]] = {
        "model.embed_tokens": Slice.WORDS,
        "model.norm": Slice.NORM,
        "lm_head": Slice.HEAD,
    }
    follows: ClassVar[Mapping[str, tuple[str, int]]] = {
        "num_key_value_heads": ("num_attention_heads", 1)
    }
    checkpoint = LlamaConfig

    def gemms(self, shape: LlamaShape) -> tuple[Gemm, ...]:
        """Return the weight products of one forward pass."""
        hidden, ffn, layers = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        return (
            Gemm("q_proj", hidden, queries, layers),
            Gemm("k_proj, v_proj", hidden, keys, 2 * layers),
            Gemm("o_proj", queries, hidden, layers),
            Gemm("gate_proj, up_proj", hidden, ffn, 2 * layers)
            if shape.gated
            else Gemm("up_proj", hidden, ffn, layers),
            Gemm("down_proj", ffn, hidden, layers),
            Gemm("lm_head", hidden, shape.vocab_size, 1),
        )

    def parameter_sizes(self, shape: LlamaShape) -> dict[str, Size]:
        """Return the size of every parameter."""
        hidden, inner, words = shape.hidden_size, shape.intermediate_size, shape.vocab_size
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_key_value_heads * shape.head_dim
        layer: dict[str, Size] = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }
        if shape.gated:
            layer["mlp.gate_proj"] = (inner, hidden)
        return {
            "model.embed_tokens.weight": (words, hidden),
            **{
                f"model.layers.{i}.{name}.weight": size
                for i in range(shape.num_hidden_layers)
                for name, size in layer.items()
            },
            "model.norm.weight": (hidden,),
            "lm_head.weight": (words, hidden),
        }

    def block_bytes(self, shape: LlamaShape, value: int, mixed: int) -> BlockBytes:
        """Return the bytes that a token of one block leaves."""
        hidden, keys = shape.hidden_size, 2 * shape.num_key_value_heads * shape.head_dim
        columns = shape.intermediate_size * (4 if shape.gated else 2)
        return BlockBytes(
            norms=hidden * (16 + 6 * mixed),
            inputs=2 * hidden * value,
            sliced=value * (2 * hidden + keys + columns),
        )

    def probe_parts(self, shape: LlamaShape) -> ProbeParts:
        """Return what the isolating probes are about."""
        layers, ends = range(shape.num_hidden_layers), ("self_attn.o_proj", "mlp.down_proj")
        return ProbeParts(
            out=tuple(f"model.layers.{i}.{end}.weight" for i in layers for end in ends),
            embeddings=("model.embed_tokens.weight",),
            head="lm_head.weight",
            tied=False,
        )

    def key_value_heads(self, shape: LlamaShape) -> int:
        """Return the number of key-value heads."""
        return shape.num_key_value_heads

    def is_gated(self, shape: LlamaShape) -> bool:
        """Tell whether the feed-forward has a gate."""
        return shape.gated

    def recipe_name(self, product: str) -> str:
        """Return the name without "_proj" and "lm_"."""
        return product.removesuffix("_proj").removeprefix("lm_")

    def slices_of_block(self, shape: LlamaShape) -> Mapping[str, Slice]:
        """Return module of a block -> how ranks share it: a gate as the matrix beside it."""
        gate = {"mlp.gate_proj": Slice.COLUMNS} if shape.gated else {}
        return {**self.block_slices, **gate}

    def regrouped(self, shape: LlamaShape, before: LlamaShape) -> LlamaShape:
        """Return ``shape`` with as many query heads to a key-value head as before."""
        grouped = before.num_attention_heads // before.num_key_value_heads
        return replace(shape, num_key_value_heads=max(1, shape.num_attention_heads // grouped))

    def check(self, shape: LlamaShape) -> None:
        """Refuse odd head sizes, and heads that cannot share keys and values."""
        super().check(shape)
        heads = shape.num_attention_heads
        if shape.head_dim % 2:
            raise UsageError(
                f"--hidden-size {shape.hidden_size} / --num-attention-heads {heads} gives heads of "
                f"{shape.head_dim}: rotary positions need an even head size"
            )
        if heads % shape.num_key_value_heads:
            raise UsageError(
                f"--num-attention-heads {heads} cannot share {shape.num_key_value_heads} key-value "
                f"heads: use a multiple of {shape.num_key_value_heads}"
            )


FAMILIES = (LlamaFamily(),)
