"""GPT-2: LayerNorm, learned positions, one matrix for queries, keys and values, a tied head.

Parameters have the names of Hugging Face's ``GPT2LMHeadModel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from llmb.errors import UsageError
from llmb.families.family import BlockBytes, Family, Gemm, ProbeParts, Size, Slice
from llmb.families.hugging_face import HuggingFaceConfig
from llmb.reference.shapes import Gpt2Shape, Shape

#: Approximations of GELU by tanh; the reference computes GELU exactly.
_BY_TANH = {"gelu_new", "gelu_fast", "gelu_pytorch_tanh"}
#: Products that the library keeps as ``[in, out]``.
_TURNED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
_PREFIX = "transformer."


class Gpt2Config(HuggingFaceConfig):
    """The ``config.json`` of a GPT-2 checkpoint."""

    required: ClassVar[Mapping[str, object]] = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }

    n_embd: PositiveInt
    n_layer: PositiveInt
    n_head: PositiveInt
    n_inner: PositiveInt | None = None
    n_positions: PositiveInt
    layer_norm_epsilon: PositiveFloat = 1e-5
    activation_function: str = "gelu_new"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True

    def shape(self, folder: Path) -> Gpt2Shape:
        """Return the shape of the weights in ``folder``."""
        if self.activation_function not in {"gelu", *_BY_TANH}:
            raise UsageError(
                f"--weights {str(folder)!r}: activation_function is {self.activation_function!r}: "
                "the gpt2 of llmb has 'gelu'"
            )
        return Gpt2Shape(
            vocab_size=self.vocab_size,
            hidden_size=self.n_embd,
            intermediate_size=self.n_inner or 4 * self.n_embd,
            num_hidden_layers=self.n_layer,
            num_attention_heads=self.n_head,
            sequence_length=self.n_positions,
            max_position_embeddings=self.n_positions,
            layer_norm_epsilon=self.layer_norm_epsilon,
            initializer_range=self.initializer_range,
        )

    def notes(self) -> tuple[str, ...]:
        """Return that GELU is exact here, where the weights know it by tanh."""
        if self.activation_function not in _BY_TANH:
            return ()
        return (
            f"the weights were trained with {self.activation_function}, GELU approximated by tanh; "
            "this model computes exact GELU, and its logits differ slightly from the original's",
        )


class Gpt2Family(Family[Gpt2Shape]):
    """Sizes, work and names of the models in ``llmb.reference.gpt2``."""

    name = "gpt2"
    title = "GPT-2"
    shapes: ClassVar[Mapping[str, type[Shape]]] = {"gpt2": Gpt2Shape}
    centred = True
    tied = True
    slices_are_wide = True
    last_norm = "transformer.ln_f.weight"
    matrices: ClassVar[Mapping[str, str]] = {
        "embedding": "transformer.wpe.weight",
        "head": "transformer.wte.weight",
        **dict.fromkeys("qkv", "transformer.h.{}.attn.c_attn.weight"),
        "o": "transformer.h.{}.attn.c_proj.weight",
        "up": "transformer.h.{}.mlp.c_fc.weight",
        "down": "transformer.h.{}.mlp.c_proj.weight",
    }
    product_names: ClassVar[Mapping[str, str]] = {
        "head": "wte",
        **dict.fromkeys("qkv", "attn.c_attn"),
        "o": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
    # What a rank's part of the fused matrix makes is not of its heads: all gather what the whole
    # makes, then each takes its heads; the gradients are gathered on the way back (docs/adr/0028).
    block_slices: ClassVar[Mapping[str, Slice]] = {
        "ln_1": Slice.NORM,
        "attn": Slice.GATHERED,
        "attn.c_attn": Slice.COLUMNS_GATHERED,
        "attn.core_attention": Slice.HEADS,
        "attn.c_proj": Slice.ROWS,
        "ln_2": Slice.NORM,
        "mlp": Slice.GATHERED,
        "mlp.c_fc": Slice.COLUMNS,
        "mlp.c_proj": Slice.ROWS,
    }
    other_slices: ClassVar[Mapping[str, Slice]] = {
        "transformer.wte": Slice.WORDS,
        "transformer.wpe": Slice.EVERYWHERE,
        "transformer.ln_f": Slice.NORM,
        "lm_head": Slice.TIED_HEAD,
    }
    follows: ClassVar[Mapping[str, tuple[str, int]]] = {
        "intermediate_size": ("hidden_size", 4),
        "sequence_length": ("max_position_embeddings", 1),
    }
    checkpoint = Gpt2Config

    def gemms(self, shape: Gpt2Shape) -> tuple[Gemm, ...]:
        """Return the weight products of one forward pass."""
        hidden, ffn, layers = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
        return (
            Gemm("attn.c_attn", hidden, 3 * hidden, layers),
            Gemm("attn.c_proj", hidden, hidden, layers),
            Gemm("mlp.c_fc", hidden, ffn, layers),
            Gemm("mlp.c_proj", ffn, hidden, layers),
            Gemm("wte", hidden, shape.vocab_size, 1),
        )

    def parameter_sizes(self, shape: Gpt2Shape) -> dict[str, Size]:
        """Return the size of every parameter."""
        hidden, inner = shape.hidden_size, shape.intermediate_size
        layer: dict[str, Size] = {
            "ln_1": (hidden,),
            "attn.c_attn": (3 * hidden, hidden),
            "attn.c_proj": (hidden, hidden),
            "ln_2": (hidden,),
            "mlp.c_fc": (inner, hidden),
            "mlp.c_proj": (hidden, inner),
        }
        sizes: dict[str, Size] = {
            "wte.weight": (shape.vocab_size, hidden),
            "wpe.weight": (shape.max_position_embeddings, hidden),
            "ln_f.weight": (hidden,),
            "ln_f.bias": (hidden,),
        }
        for i in range(shape.num_hidden_layers):
            for name, size in layer.items():
                sizes[f"h.{i}.{name}.weight"] = size
                sizes[f"h.{i}.{name}.bias"] = size[:1]
        return {f"{_PREFIX}{name}": size for name, size in sizes.items()}

    def block_bytes(self, shape: Gpt2Shape, value: int, mixed: int) -> BlockBytes:
        """Return the bytes that a token of one block leaves."""
        hidden = shape.hidden_size
        return BlockBytes(
            norms=hidden * (2 * value + 4 * mixed),
            inputs=hidden * 2 * value,
            sliced=value * (4 * hidden + 2 * shape.intermediate_size),
        )

    def probe_parts(self, shape: Gpt2Shape) -> ProbeParts:
        """Return what the isolating probes are about."""
        layers, ends = range(shape.num_hidden_layers), ("attn.c_proj", "mlp.c_proj")
        stems = [f"transformer.h.{i}.{end}" for i in layers for end in ends]
        return ProbeParts(
            out=tuple(f"{stem}.weight" for stem in stems),
            biases=tuple(f"{stem}.bias" for stem in stems),
            embeddings=("transformer.wpe.weight",),
            head="transformer.wte.weight",
            tied=True,
            centred=True,
            gains=("transformer.ln_f.weight",),
            offsets=("transformer.ln_f.bias",),
        )

    def stored_name(self, name: str) -> str:
        """Return the name with the prefix, which checkpoints of the bare model lack."""
        return name if name.startswith((_PREFIX, "lm_head.")) else _PREFIX + name

    def is_turned(self, name: str) -> bool:
        """Tell whether checkpoints keep the parameter as ``[in, out]``."""
        return name.endswith(_TURNED)

    def is_dispensable(self, name: str) -> bool:
        """Tell whether it is the head, which is the embedding a second time."""
        return name == "lm_head.weight"


FAMILIES = (Gpt2Family(),)
