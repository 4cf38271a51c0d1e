"""What a training system stores, a job for the memory model, and the memory of a rank. No torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from llmb.config import Parallelism, Precision
from llmb.reference.shapes import Shape

Recompute = Literal["none", "attention", "op", "full"]
_ALONE = Parallelism()
#: Shares of a device's memory: "yes" up to 0.85, "tight" up to 1.10, "no" above.
_FITS, _FITS_NOT = 0.85, 1.10


@dataclass(frozen=True)
class StorageRecipe:
    """What a training system stores, in bytes per parameter, and how it counts activations."""

    name: str
    #: One sentence for the output of a command.
    description: str
    weight: int
    gradient: int
    #: Bytes of one of the optimizer's moments.
    moment: int
    #: Bytes of a further copy of the weights that only the optimizer uses.
    master: int
    #: Bytes of a value that products take.
    value: int
    #: Activations of fused kernels (Korthikanti et al. 2022, arXiv 2205.05198, section 4, without
    #: dropout masks), and gradients in a buffer that is there all the time; False: llmb's layers.
    fused: bool = False

    @property
    def mixed(self) -> int:
        """1 where weights are wider than the values of products (autocast), otherwise 0."""
        return int(self.weight > self.value)


def own(value: int) -> StorageRecipe:
    """Return llmb's own loop with everything in values of ``value`` bytes. Example: 2 for BF16."""
    said = f"llmb's loop: weights, gradients and moments of {value} bytes each, llmb's layers"
    return StorageRecipe("llmb", said, value, value, value, 0, value)


def recipe_of(precision: Precision) -> StorageRecipe:
    """Return the recipe of a run of llmb in ``precision``."""
    return MIXED if precision.master_weights else own(precision.bytes_per_value)


LLMB = own(2)
MIXED = StorageRecipe(
    "llmb-mixed",
    "llmb's loop with --mixed-precision: float32 weights, gradients and moments, 16-bit products",
    weight=4,
    gradient=4,
    moment=4,
    master=0,
    value=2,
)
MEGATRON = StorageRecipe(
    "megatron",
    "Megatron's mixed precision: 18 bytes a parameter (BF16 weight; float32 gradient, master "
    "weight and moments), activations of fused kernels",
    weight=2,
    gradient=4,
    moment=4,
    master=4,
    value=2,
    fused=True,
)
RECIPES = {one.name: one for one in (LLMB, MIXED, MEGATRON)}


@dataclass(frozen=True)
class MemoryJob:
    """A training step of one model on ranks. Sizes are those of one rank's micro-batch."""

    shape: Shape
    stored: StorageRecipe = LLMB
    #: Sequences of a micro-batch. May be a fraction, such as the mean in a published table.
    micro_batch: float = 1
    micro_batches: int = 1
    parallelism: Parallelism = _ALONE
    #: Replicas (``dp_replicate``) that share the optimizer's states (1), and gradients (2), and
    #: weights (3), as in ZeRO. llmb's loop has 0: its shards are ``dp_shard`` (FSDP2).
    zero: int = 0
    #: Stages per rank of an interleaved schedule of a fused system.
    virtual_stages: int = 1
    #: Blocks that keep their input alone. "op": every block keeps its products (llmb's loop).
    recomputed: int = 0
    recompute: Recompute = "none"
    #: Moments of the optimizer per parameter: AdamW 2, SGD 0.
    moments: int = 2
    #: A fused system's attention stores no scores.
    fused_attention: bool = True
    #: llmb's attention with dropout keeps scores, as torch does on a processor.
    scores: bool = True

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.shape.sequence_length


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest rank, at the moment of its peak."""

    weights: float = 0.0
    gradients: float = 0.0
    #: The optimizer's moments.
    moments: float = 0.0
    #: A copy of the weights in float32 that only the optimizer uses.
    master: float = 0.0
    #: Tensors that forward passes keep for backward passes, and those at work in a block.
    activations: float = 0.0
    #: Gathered weights, gradients on their way, buckets of DDP.
    buffers: float = 0.0
    #: Logits, with their copies in the loss.
    logits: float = 0.0

    @property
    def total(self) -> float:
        """The peak: sum of all parts in bytes."""
        return (
            self.weights
            + self.gradients
            + self.moments
            + self.master
            + self.activations
            + self.buffers
            + self.logits
        )

    def parts(self) -> dict[str, float]:
        """Return bytes by name. Example: ``{"weights": 1.4e10, ...}``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, memory_bytes: float) -> Literal["yes", "tight", "no"]:
        """Tell whether a device of ``memory_bytes`` has enough memory; "tight": perhaps."""
        share = self.total / memory_bytes
        return "yes" if share <= _FITS else "tight" if share <= _FITS_NOT else "no"
