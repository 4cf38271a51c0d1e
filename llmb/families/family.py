"""What llmb knows of a family of models, beside the reference that computes it. No torch.

docs/architecture.md says how to add a family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from llmb.config import Mode
from llmb.errors import UsageError
from llmb.families.hugging_face import HuggingFaceConfig
from llmb.reference.shapes import Shape

S = TypeVar("S", bound=Shape)
Size = tuple[int, ...]
#: The matrix between the last norm and the head, where there is one.
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
    """The parameters of a model that the isolating probes are about, by name."""

    #: The matrices through which branches write, two a layer, in order.
    out: tuple[str, ...]
    #: Embeddings ``[n, hidden]`` that are nothing else.
    embeddings: tuple[str, ...]
    #: The matrix ``[vocab, hidden]`` that makes the logits, and whether it is an embedding, too.
    head: str
    tied: bool
    #: Biases beside ``out``.
    biases: tuple[str, ...] = ()
    #: Whether norms take the mean away; then gains and biases of the norms after the last layer.
    centred: bool = False
    gains: tuple[str, ...] = ()
    offsets: tuple[str, ...] = ()
    #: A matrix between the last layer and the head, None where there is none.
    between: str | None = None


class Slice(Enum):
    """How the ranks of tensor parallelism share a module."""

    #: Every rank has all of its parameters; with sequence parallelism, its part of the tokens.
    NORM = "norm"
    #: Every rank has all of its parameters and all tokens.
    EVERYWHERE = "everywhere"
    #: Its input is gathered once, for all that it is made of: one tensor, or one of three.
    GATHERED = "gathered"
    GATHERED_OF_3 = "gathered, of three inputs"
    #: Each rank has some rows of the matrix ``[out, in]``; its outputs stay, or are gathered.
    COLUMNS = "columns"
    COLUMNS_GATHERED = "columns, gathered"
    #: Each rank takes its heads of queries, keys and values.
    HEADS = "heads"
    #: Each rank has some columns of the matrix ``[out, in]``; outputs are summed.
    ROWS = "rows"
    #: Each rank has the embeddings of its words.
    WORDS = "words"
    #: Each rank makes the logits of its words: with a matrix of its own, or with that of the
    #: words, and a bias beside it.
    HEAD = "head"
    TIED_HEAD = "tied head"
    TIED_HEAD_AND_BIAS = "tied head with a bias"
    #: A parameter of its own: each rank has some elements.
    ELEMENTS = "elements"


class Family(ABC, Generic[S]):
    """One family: sizes and work in closed form, names of its parameters, and what goes with it."""

    #: As records and workload files call it, and as people do.
    name: ClassVar[str]
    title: ClassVar[str]
    #: In which modes its models run.
    modes: ClassVar[tuple[Mode, ...]] = tuple(Mode)
    #: A token attends to none behind it, and is followed by its target.
    causal: ClassVar[bool] = True
    #: Norms take the mean of a token's channels away.
    centred: ClassVar[bool] = False
    #: The head is the embedding of the words.
    tied: ClassVar[bool] = False
    #: Pipelines can cut it into stages.
    has_stages: ClassVar[bool] = False
    #: Ranks of tensor parallelism may share the tokens and the logits of a sequence.
    shares_sequences: ClassVar[bool] = True
    #: Slices of its matrices round otherwise than the whole does: only with weights in float32.
    slices_are_wide: ClassVar[bool] = False
    #: Loss beyond that of the words at the first weights, in nats: of other tasks of the training.
    other_loss: ClassVar[float] = 0.0
    #: The gain of the norm before the head.
    last_norm: ClassVar[str]
    #: Kind of a matrix ("q", "up", "head") -> the parameter that holds it, "{}" for the layer.
    matrices: ClassVar[Mapping[str, str]]
    #: Kind -> what the table of measured precision calls its product, where that is another name.
    product_names: ClassVar[Mapping[str, str]] = {}
    #: Module of a block, and of the rest of the model -> how ranks share it.
    block_slices: ClassVar[Mapping[str, Slice]]
    other_slices: ClassVar[Mapping[str, Slice]]
    #: How Hugging Face's ``config.json`` of the family is read; None: no weights of it are.
    checkpoint: ClassVar[type[HuggingFaceConfig] | None] = None

    @abstractmethod
    def gemms(self, shape: S) -> tuple[Gemm, ...]:
        """Return the weight products of one forward pass, equal shapes grouped."""

    @abstractmethod
    def parameter_sizes(self, shape: S) -> dict[str, Size]:
        """Return the size of every parameter; matrices are ``[out, in]``. A tied head is one."""

    @abstractmethod
    def block_bytes(self, shape: S, value: int, mixed: int) -> int:
        """Return the bytes that a token of one block leaves for the backward pass.

        ``value`` is the bytes of a value; ``mixed`` is 1 under autocast, otherwise 0.
        """

    @abstractmethod
    def probe_parts(self, shape: S) -> ProbeParts:
        """Return what the isolating probes are about."""

    def key_value_heads(self, shape: S) -> int:
        """Return how many heads have keys and values of their own."""
        return shape.num_attention_heads

    def is_gated(self, shape: S) -> bool:
        """Tell whether the feed-forward has a gate, and so three matrices."""
        return False

    def targets(self, shape: S, tokens: int) -> int:
        """Return how many of a step's ``tokens`` are predicted."""
        return tokens // shape.sequence_length * (shape.sequence_length - 1)

    def recipe_name(self, product: str) -> str:
        """Return what the table of measured precision calls a product of ``gemms``."""
        return product

    def slices_of_block(self, shape: S) -> Mapping[str, Slice]:
        """Return module of a block -> how ranks share it."""
        return self.block_slices

    def regrouped(self, shape: S, before: S) -> S:
        """Return ``shape``, whose number of heads was set, with heads grouped as ``before``."""
        return shape

    def check(self, shape: S) -> None:
        """Refuse sizes that make no model.

        Raises:
            UsageError: which size, and what to change.
        """
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
        """Return our name of a tensor of a checkpoint."""
        return name

    def is_turned(self, name: str) -> bool:
        """Tell whether checkpoints keep the parameter as ``[in, out]``."""
        return False

    def is_dispensable(self, name: str) -> bool:
        """Tell whether a tensor of a checkpoint is no weight of its own, by our name."""
        return False
