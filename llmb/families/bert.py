"""BERT as Megatron has it: norms before branches, token types, masked words and sentence order.

Parameters have the names of Hugging Face's ``BertForPreTraining``, less its post-norms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from llmb.config import Mode
from llmb.families.family import TRANSFORM, BlockBytes, Family, Gemm, ProbeParts, Size, Slice
from llmb.reference.shapes import BertShape, Shape

#: Share of the tokens that are to be found again: ``llmb.reference.data.MASKED``, without torch.
_MASKED = 0.15
_LAYER = "bert.encoder.layer.{}"


class BertFamily(Family[BertShape]):
    """Sizes, work and names of the models in ``llmb.reference.bert``."""

    name = "bert"
    title = "BERT"
    shapes: ClassVar[Mapping[str, type[Shape]]] = {"bert": BertShape}
    modes = (Mode.TRAIN,)
    causal = False
    centred = True
    tied = True
    shares_sequences = False
    other_loss = math.log(2)  # which of two sentences came first
    last_norm = "cls.predictions.transform.LayerNorm.weight"
    matrices: ClassVar[Mapping[str, str]] = {
        "embedding": "bert.embeddings.position_embeddings.weight",
        "head": "bert.embeddings.word_embeddings.weight",
        TRANSFORM: "cls.predictions.transform.dense.weight",
        "q": f"{_LAYER}.attention.self.query.weight",
        "k": f"{_LAYER}.attention.self.key.weight",
        "v": f"{_LAYER}.attention.self.value.weight",
        "o": f"{_LAYER}.attention.output.dense.weight",
        "up": f"{_LAYER}.intermediate.dense.weight",
        "down": f"{_LAYER}.output.dense.weight",
    }
    product_names: ClassVar[Mapping[str, str]] = {
        "head": "word_embeddings",
        TRANSFORM: "transform.dense",
        "q": "query",
        "k": "key",
        "v": "value",
        "o": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    }
    block_slices: ClassVar[Mapping[str, Slice]] = {
        "attention.ln": Slice.NORM,
        "attention.self": Slice.GATHERED,
        "attention.self.query": Slice.COLUMNS,
        "attention.self.key": Slice.COLUMNS,
        "attention.self.value": Slice.COLUMNS,
        "attention.output.dense": Slice.ROWS,
        "ln": Slice.NORM,
        "intermediate": Slice.GATHERED,
        "intermediate.dense": Slice.COLUMNS,
        "output.dense": Slice.ROWS,
    }
    # What follows the encoder is small but for the words, and computed by every rank.
    other_slices: ClassVar[Mapping[str, Slice]] = {
        "bert.embeddings.word_embeddings": Slice.WORDS,
        "bert.embeddings.position_embeddings": Slice.EVERYWHERE,
        "bert.embeddings.token_type_embeddings": Slice.EVERYWHERE,
        "bert.encoder.ln": Slice.EVERYWHERE,
        "bert.pooler.dense": Slice.EVERYWHERE,
        "cls.predictions.transform.dense": Slice.EVERYWHERE,
        "cls.predictions.transform.LayerNorm": Slice.EVERYWHERE,
        "cls.predictions.decoder": Slice.TIED_HEAD_AND_BIAS,
        "cls.predictions.bias": Slice.ELEMENTS,
        "cls.seq_relationship": Slice.EVERYWHERE,
    }

    def gemms(self, shape: BertShape) -> tuple[Gemm, ...]:
        """Return the weight products. Those of one token, such as the pooler's, are left out."""
        hidden, ffn, layers = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
        return (
            Gemm("query, key, value", hidden, hidden, 3 * layers),
            Gemm("attention.output.dense", hidden, hidden, layers),
            Gemm("intermediate.dense", hidden, ffn, layers),
            Gemm("output.dense", ffn, hidden, layers),
            Gemm("transform.dense", hidden, hidden, 1),
            Gemm("word_embeddings", hidden, shape.vocab_size, 1),
        )

    def parameter_sizes(self, shape: BertShape) -> dict[str, Size]:
        """Return the size of every parameter."""
        hidden, inner, words = shape.hidden_size, shape.intermediate_size, shape.vocab_size
        with_bias: dict[str, Size] = {
            "bert.encoder.ln": (hidden,),
            "bert.pooler.dense": (hidden, hidden),
            "cls.predictions.transform.dense": (hidden, hidden),
            "cls.predictions.transform.LayerNorm": (hidden,),
            "cls.seq_relationship": (2, hidden),
        }
        for i in range(shape.num_hidden_layers):
            layer = _LAYER.format(i)
            with_bias |= {f"{layer}.attention.ln": (hidden,), f"{layer}.ln": (hidden,)}
            for name in ("self.query", "self.key", "self.value", "output.dense"):
                with_bias[f"{layer}.attention.{name}"] = (hidden, hidden)
            with_bias[f"{layer}.intermediate.dense"] = (inner, hidden)
            with_bias[f"{layer}.output.dense"] = (hidden, inner)
        embeddings = "bert.embeddings"
        return {
            f"{embeddings}.word_embeddings.weight": (words, hidden),
            f"{embeddings}.position_embeddings.weight": (shape.max_position_embeddings, hidden),
            f"{embeddings}.token_type_embeddings.weight": (shape.type_vocab_size, hidden),
            **{f"{name}.weight": size for name, size in with_bias.items()},
            **{f"{name}.bias": size[:1] for name, size in with_bias.items()},
            "cls.predictions.bias": (words,),
        }

    def block_bytes(self, shape: BertShape, value: int, mixed: int) -> BlockBytes:
        """Return the bytes that a token of one block leaves."""
        hidden = shape.hidden_size
        # With dropout: two masks, and queries and keys in float32.
        masks, wide = (2, 8) if shape.dropout else (0, 0)
        return BlockBytes(
            norms=hidden * (2 * value + 12 * mixed + masks),
            inputs=hidden * 2 * value,
            sliced=hidden * (4 * value + wide) + 2 * shape.intermediate_size * value,
        )

    def probe_parts(self, shape: BertShape) -> ProbeParts:
        """Return what the isolating probes are about."""
        layers, ends = range(shape.num_hidden_layers), ("attention.output.dense", "output.dense")
        stems = [f"{_LAYER.format(i)}.{end}" for i in layers for end in ends]
        embeddings = "bert.embeddings"
        return ProbeParts(
            out=tuple(f"{stem}.weight" for stem in stems),
            biases=tuple(f"{stem}.bias" for stem in stems),
            embeddings=(
                f"{embeddings}.position_embeddings.weight",
                f"{embeddings}.token_type_embeddings.weight",
            ),
            head=f"{embeddings}.word_embeddings.weight",
            tied=True,
            centred=True,
            gains=("bert.encoder.ln.weight", "cls.predictions.transform.LayerNorm.weight"),
            offsets=(
                "bert.encoder.ln.bias",
                "cls.predictions.transform.dense.bias",
                "cls.predictions.transform.LayerNorm.bias",
            ),
            between="cls.predictions.transform.dense.weight",
        )

    def targets(self, shape: BertShape, tokens: int) -> int:
        """Return the number of masked words."""
        return int(_MASKED * tokens)


FAMILIES = (BertFamily(),)
