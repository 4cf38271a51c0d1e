"""A family of models: sizes, work, parameter names, and tensor-parallel slices. No torch.

``llmb.reference`` computes the models. docs/growing.md says how to add a family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from llmb.config import Mode, Parallelism
from llmb.errors import UsageError
from llmb.families.hugging_face import HuggingFaceConfig
from llmb.reference.shapes import Shape

S = TypeVar("S", bound=Shape)
Size = tuple[int, ...]
#: Kind of the matrix between the last norm and the head. Example: BERT's transform.
TRANSFORM = "transform"


@dataclass(frozen=True)
class Gemm:
    """One matrix product of the forward pass: ``[tokens, k] @ [k, n]``, ``count`` times a step."""

    name: str
    k: int
    n: int
    count: int


@dataclass(frozen=True)
class ProbeParts:
    """Names of the parameters that the isolating probes change (``llmb.observe.probes``)."""

    #: Output projections of attention and feed-forward, two per layer, in order.
    out: tuple[str, ...]
    #: Embeddings ``[n, hidden]`` that are not the head.
    embeddings: tuple[str, ...]
    #: The matrix ``[vocab, hidden]`` that makes the logits; ``tied``: an embedding as well.
    head: str
    tied: bool
    #: Biases of the output projections.
    biases: tuple[str, ...] = ()
    #: Whether norms subtract the mean; then gains and biases of the norms after the last layer.
    centred: bool = False
    gains: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    #: The matrix between the last layer and the head, or None.
    between: str | None = None


@dataclass(frozen=True)
class BlockBytes:
    """Activation bytes per token of one block, by how ranks of tensor parallelism share them."""

    #: Full on each rank; with sequence parallelism a part.
    norms: float = 0.0
    #: Full on each rank: inputs of products, gathered from the other ranks, or results to add up.
    inputs: float = 0.0
    #: A part on each rank: heads, and columns of the feed-forward network.
    sliced: float = 0.0

    def of_rank(self, how: Parallelism) -> float:
        """Return the bytes of one rank. Example: ``norms + inputs + sliced / 2`` with tp 2."""
        norms = self.norms / how.tp if how.sequence_parallel else self.norms
        return norms + self.inputs + self.sliced / how.tp


class Slice(Enum):
    """How the ranks of tensor parallelism share a module."""

    #: Every rank has all parameters; with sequence parallelism, a part of the tokens.
    NORM = "norm"
    #: Every rank has all parameters of the module, and all tokens.
    EVERYWHERE = "everywhere"
    #: The module's input is gathered once for all submodules: one tensor, or the first of three.
    GATHERED = "gathered"
    GATHERED_OF_3 = "gathered, of three inputs"
    #: Each rank has some rows of the matrix ``[out, in]``; outputs stay there, or are gathered.
    COLUMNS = "columns"
    COLUMNS_GATHERED = "columns, gathered"
    #: Each rank takes some heads of queries, keys, and values.
    HEADS = "heads"
    #: A norm of each head, ``[B, T, heads, head size]``: each rank norms its own heads.
    NORM_OF_HEADS = "norm of heads"
    #: Each rank has some columns of the matrix ``[out, in]``; outputs are summed.
    ROWS = "rows"
    #: Each rank has the embeddings of some words.
    WORDS = "words"
    #: Each rank makes the logits of some words: with its own rows of the head, or with the
    #: embeddings of these words, without or with a bias.
    HEAD = "head"
    TIED_HEAD = "tied head"
    TIED_HEAD_AND_BIAS = "tied head with a bias"
    #: A parameter instead of a module: each rank has some elements.
    ELEMENTS = "elements"


class Family(ABC, Generic[S]):
    """One family of models. A subclass states every difference between this family and others."""

    #: The name ("gpt2"), and the name for people ("GPT-2").
    name: ClassVar[str]
    title: ClassVar[str]
    #: The shapes of the family, by their names in records and workload files.
    shapes: ClassVar[Mapping[str, type[Shape]]]
    #: Modes in which models of the family run.
    modes: ClassVar[tuple[Mode, ...]] = tuple(Mode)
    #: Tokens attend to earlier tokens alone, and the target of a token is the next token.
    causal: ClassVar[bool] = True
    #: The gain of the norm of a query head, "{}" for the layer; None: queries and keys keep their
    #: size. Keys have such a norm, too.
    query_norm: ClassVar[str | None] = None
    #: Norms subtract the mean over the channels of a token (LayerNorm).
    centred: ClassVar[bool] = False
    #: The head is the word embedding.
    tied: ClassVar[bool] = False
    #: The size of a head is a size of its own, and not hidden size / heads.
    has_own_head_size: ClassVar[bool] = False
    #: Pipeline parallelism can cut the model into stages.
    has_stages: ClassVar[bool] = False
    #: Sequence parallelism and loss parallelism are possible.
    shares_sequences: ClassVar[bool] = True
    #: Tensor parallelism needs float32 weights: slices in BF16 round differently (docs/adr/0028).
    slices_are_wide: ClassVar[bool] = False
    #: Loss of further training tasks at the first weights, in nats. Example: 0.69 for two classes.
    other_loss: ClassVar[float] = 0.0
    #: The gain of the norm before the head.
    last_norm: ClassVar[str]
    #: Kind of a matrix ("q", "up", "head") -> the parameter with the matrix, "{}" for the layer.
    matrices: ClassVar[Mapping[str, str]]
    #: Kind -> name of the product in the table of measured precision, if the name is not the kind.
    product_names: ClassVar[Mapping[str, str]] = {}
    #: Module -> how tensor-parallel ranks share the module: in each block, and outside the blocks.
    block_slices: ClassVar[Mapping[str, Slice]]
    other_slices: ClassVar[Mapping[str, Slice]]
    #: Size that few families have -> meaning, for workload files. Example: ``head_dim``.
    meanings: ClassVar[Mapping[str, str]] = {}
    #: Size -> the size that it follows in a workload file, and how many times: as in transformers.
    follows: ClassVar[Mapping[str, tuple[str, int]]] = {}
    #: Reader of Hugging Face's ``config.json``; None: llmb reads no checkpoints of the family.
    checkpoint: ClassVar[type[HuggingFaceConfig] | None] = None

    @abstractmethod
    def gemms(self, shape: S) -> tuple[Gemm, ...]:
        """Return the weight products of one forward pass, equal shapes grouped."""

    @abstractmethod
    def parameter_sizes(self, shape: S) -> dict[str, Size]:
        """Return name -> size of every parameter. Matrices are ``[out, in]``."""

    @abstractmethod
    def block_bytes(self, shape: S, value: int, mixed: int) -> BlockBytes:
        """Return the activation bytes per token that one block keeps for the backward pass.

        ``value`` is the size of a value in bytes; ``mixed`` is 1 under autocast, otherwise 0.
        """

    def product_bytes(self, shape: S, value: int, mixed: int) -> BlockBytes:
        """Return the bytes per token of a block that keeps its input and its products' results."""
        hidden, share = shape.hidden_size, self.key_value_heads(shape) / shape.num_attention_heads
        queries = shape.num_attention_heads * shape.head_dim
        ups = 2 if self.is_gated(shape) else 1
        return BlockBytes(
            norms=hidden * (4 if mixed else value),
            # Results of the last products, before the ranks add them up.
            inputs=2 * hidden * value,
            sliced=value * (queries * (2 + 2 * share) + ups * shape.intermediate_size),
        )

    @abstractmethod
    def probe_parts(self, shape: S) -> ProbeParts:
        """Return the parameters that the isolating probes change."""

    def key_value_heads(self, shape: S) -> int:
        """Return the number of key-value heads."""
        return shape.num_attention_heads

    def is_gated(self, shape: S) -> bool:
        """Tell whether the feed-forward network has a gate, and so three matrices."""
        return False

    def targets(self, shape: S, tokens: int) -> int:
        """Return the number of predicted tokens in a step of ``tokens`` tokens."""
        return tokens // shape.sequence_length * (shape.sequence_length - 1)

    def recipe_name(self, product: str) -> str:
        """Return the name of a product of ``gemms`` in the table of measured precision."""
        return product

    def slices_of_block(self, shape: S) -> Mapping[str, Slice]:
        """Return module of a block -> how tensor-parallel ranks share the module."""
        return self.block_slices

    def regrouped(self, shape: S, before: S) -> S:
        """Return ``shape`` after an override of the heads, with key-value groups as ``before``."""
        return shape

    def check(self, shape: S) -> None:
        """Check that a model of these sizes exists.

        Raises:
            UsageError: names the size and the change that helps.
        """
        hidden, heads = shape.hidden_size, shape.num_attention_heads
        if not self.has_own_head_size and hidden % heads:
            raise UsageError(
                f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}: "
                "change one of them"
            )
        most = getattr(shape, "max_position_embeddings", None)
        if most is not None and shape.sequence_length > most:
            raise UsageError(
                f"--sequence-length {shape.sequence_length} is longer than the model has "
                f"positions: use at most {most}"
            )

    @property
    def is_fused(self) -> bool:
        """Whether one parameter holds the matrices of queries, keys and values."""
        return self.matrices["q"] == self.matrices["k"]

    def stored_name(self, name: str) -> str:
        """Return llmb's name of a tensor in a checkpoint."""
        return name

    def is_turned(self, name: str) -> bool:
        """Tell whether checkpoints store the parameter as ``[in, out]``."""
        return False

    def is_dispensable(self, name: str) -> bool:
        """Tell whether a tensor of a checkpoint, by llmb's name, repeats another weight."""
        return False
