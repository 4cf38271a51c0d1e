"""A training job for a projection: the sizes of a model, and a layout over devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from llmb.config import Parallelism
from llmb.errors import UsageError
from llmb.families import family_of
from llmb.reference.shapes import LlamaShape, Shape, UngatedLlamaShape
from llmb.workloads.memory import LLMB, Memory, MemoryJob, StorageRecipe, peak_memory

Recompute = Literal["none", "attention", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
#: Upper bound of every count. A larger number is a typing error.
_MOST = 10**12


@dataclass(frozen=True)
class Model:
    """The sizes of a model for time and memory formulas, for every model family."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    #: Key-value heads over heads. Example: 0.25 for 8 of 32 heads.
    kv_share: float
    gated: bool
    vocabulary: int
    sequence: int
    #: Channels of all query heads together; None: as many as hidden channels.
    queries: int | None = None
    #: All sizes of the model; None: of a model that is known by the numbers above alone.
    shape: Shape | None = None

    @classmethod
    def of(cls, shape: Shape) -> Model:
        """Return the sizes of ``shape``."""
        heads = shape.num_attention_heads
        family = family_of(shape)
        return cls(
            layers=shape.num_hidden_layers,
            hidden=shape.hidden_size,
            intermediate=shape.intermediate_size,
            heads=heads,
            kv_share=family.key_value_heads(shape) / heads,
            gated=family.is_gated(shape),
            vocabulary=shape.vocab_size,
            sequence=shape.sequence_length,
            queries=heads * shape.head_dim,
            shape=shape,
        )

    @property
    def all_sizes(self) -> Shape:
        """The shape; without one, a Llama of the known sizes."""
        if self.shape is not None:
            return self.shape
        return (LlamaShape if self.gated else UngatedLlamaShape)(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=round(self.kv_share * self.heads),
            sequence_length=self.sequence,
        )

    @property
    def up_matrices(self) -> int:
        """Number of up-projections in the feed-forward network: 2 if gated, else 1."""
        return 2 if self.gated else 1

    @property
    def width(self) -> int:
        """Channels of all query heads together. Example: 2,048 of qwen3-0.6b, whose d is 1,024."""
        return self.hidden if self.queries is None else self.queries

    @property
    def layer_parameters(self) -> float:
        """Parameters of one layer's matrices: ``(2 + 2 kv) w d + (2 or 3) d f``, w the width."""
        attention = (2 + 2 * self.kv_share) * self.hidden * self.width
        return attention + (self.up_matrices + 1) * self.hidden * self.intermediate

    @property
    def parameters(self) -> float:
        """Parameters of all matrices, with separate embedding and head."""
        return self.layers * self.layer_parameters + 2 * self.vocabulary * self.hidden


@dataclass(frozen=True)
class Job:
    """A model on ``tp * pp * dp`` devices; a replica runs ``micro_batches`` per step."""

    model: Model
    dp: int = 1
    tp: int = 1
    pp: int = 1
    #: Sequences of one micro-batch of one replica. May be a fraction, such as the mean in a table.
    micro_batch: float = 1
    micro_batches: int = 1
    #: Pipeline stages per rank (interleaved schedules).
    virtual_stages: int = 1
    #: ZeRO stage: 0 = nothing is sharded; 1 = optimizer states; 2 = and gradients; 3 = and weights.
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    #: Whether attention is one kernel without stored scores, such as FlashAttention.
    fused_attention: bool = True
    #: Whether elementwise kernels are fused, by a compiler or by hand.
    fused_elementwise: bool = True
    #: Whether all-reduces of tensor parallelism run at the same time as products.
    overlapped_tp: bool = False
    #: What the system stores: llmb's loop, or Megatron's mixed precision. For memory alone.
    stored: StorageRecipe = LLMB
    #: Moments of the optimizer per parameter: AdamW 2, SGD 0.
    moments: int = 2

    @property
    def memory(self) -> Memory:
        """Memory of the fullest rank."""
        return peak_memory(self._stored_job())

    def _stored_job(self) -> MemoryJob:
        """Return the job for the memory model.

        llmb's loop shares by FSDP2: ``zero`` 1 and 2 keep gathered weights, 3 gathers twice.
        Its attention stores no scores that could be recomputed.
        """
        fused, shards = self.stored.fused, self.zero > 0 and not self.stored.fused
        return MemoryJob(
            self.model.all_sizes,
            self.stored,
            self.micro_batch,
            self.micro_batches,
            Parallelism(
                dp_replicate=1 if shards else self.dp,
                dp_shard=self.dp if shards else 1,
                tp=self.tp,
                pp=self.pp,
                reshard_after_forward=self.zero in (0, 3),
                sequence_parallel=self.sequence_parallel,
                schedule="1F1B" if fused or self.virtual_stages == 1 else "Interleaved1F1B",
            ),
            zero=self.zero if fused else 0,
            virtual_stages=self.virtual_stages,
            recompute=self.recompute if fused else "none",
            recomputed=self.model.layers if self.recompute == "full" else 0,
            moments=self.moments,
            fused_attention=self.fused_attention,
        )

    @property
    def devices(self) -> int:
        """Number of devices, ``tp * pp * dp``."""
        return self.tp * self.pp * self.dp

    @property
    def sequences(self) -> float:
        """Sequences of one step on all devices (global batch size)."""
        return self.dp * self.micro_batch * self.micro_batches

    @property
    def tokens(self) -> float:
        """Tokens of one step on all devices."""
        return self.sequences * self.model.sequence

    @property
    def rank_parameters(self) -> float:
        """Mean parameters per rank: all parameters over ``tp * pp``."""
        return self.model.parameters / (self.tp * self.pp)

    def check(self) -> Job:
        """Return the job itself if the layout fits the model.

        Raises:
            UsageError: a size has no even split, a number is not positive, or an option needs
                ``--tp`` or ``--pp`` of 2 or more. Example: ``--tp 3 does not divide the 32
                attention heads``.
        """
        model = self.model
        for name in ("dp", "tp", "pp", "micro_batch", "micro_batches", "virtual_stages"):
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise UsageError(f"{name.replace('_', ' ')} is {value}: it must be positive")
        for what, size, by, option in (
            ("attention heads", model.heads, self.tp, "--tp"),
            ("key-value heads", round(model.kv_share * model.heads), self.tp, "--tp"),
            ("columns of the feed-forward network", model.intermediate, self.tp, "--tp"),
            ("layers", model.layers, self.pp * self.virtual_stages, "--pp x --virtual-stages"),
        ):
            if size % by:
                raise UsageError(f"{option} {by} does not divide the {size:,} {what}")
        for option, given in (
            ("--sequence-parallel", self.sequence_parallel),
            ("--overlap-tp", self.overlapped_tp),
        ):
            if given and self.tp == 1:
                raise UsageError(f"{option} is for ranks that share a layer: give --tp 2 or more")
        if self.sequence_parallel and model.sequence % self.tp:
            raise UsageError(
                f"--sequence-parallel: --tp {self.tp} does not divide the sequence of "
                f"{model.sequence} tokens"
            )
        if self.virtual_stages > 1 and self.pp == 1:
            raise UsageError(f"--virtual-stages {self.virtual_stages} needs --pp 2 or more")
        return self
