"""Named sizes: what is trained, at which shapes, and how much work and memory one token takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llmb.config import OFFICIAL_WORKLOAD, Mode, ShapeName
from llmb.errors import UsageError
from llmb.reference.shapes import LlamaShape


@dataclass(frozen=True)
class Workload:
    """A model at fixed shapes, in the modes it can be run in."""

    name: str
    family: str
    shape: LlamaShape
    modes: tuple[Mode, ...]

    def tokens_per_step(self, batch_size: int) -> int:
        """Return the tokens one step counts: every position, as in the source document."""
        return batch_size * self.shape.sequence_length


_WORKLOADS = {
    OFFICIAL_WORKLOAD: Workload(OFFICIAL_WORKLOAD, "llama", LlamaShape(), (Mode.TRAIN,)),
}


def find(name: str, overrides: Mapping[ShapeName, int]) -> Workload:
    """Return workload ``name`` with ``overrides`` applied to its shape.

    Raises:
        UsageError: unknown name, or shapes that make no model.
    """
    if name not in _WORKLOADS:
        known = ", ".join(_WORKLOADS)
        raise UsageError(f"unknown workload {name!r}: choose one of {known}")
    base = _WORKLOADS[name]
    shape = _override(base.shape, overrides)
    _check(shape)
    return replace(base, shape=shape)


def _override(shape: LlamaShape, overrides: Mapping[ShapeName, int]) -> LlamaShape:
    for field, value in overrides.items():
        if value < 1:
            raise UsageError(f"--{field.replace('_', '-')} is {value}: it must be at least 1")
        shape = replace(shape, **{field: value})
    # The fixed workload has no grouped queries, so its key-value heads follow the query heads.
    if "num_attention_heads" in overrides:
        shape = replace(shape, num_key_value_heads=shape.num_attention_heads)
    return shape


def _check(shape: LlamaShape) -> None:
    heads = shape.num_attention_heads
    if shape.hidden_size % heads:
        raise UsageError(
            f"--hidden-size {shape.hidden_size} is not divisible by "
            f"--num-attention-heads {heads}: change one of them"
        )
    if shape.head_dim % 2:
        raise UsageError(
            f"--hidden-size {shape.hidden_size} / --num-attention-heads {heads} gives heads of "
            f"{shape.head_dim}: rotary positions need an even head size"
        )
    if shape.sequence_length < 2:
        raise UsageError("--sequence-length 1 leaves no next token to predict: use at least 2")
