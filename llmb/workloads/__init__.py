"""Named sizes: what is trained, at which shapes, and how much work and memory one token takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmb.config import ShapeName
from llmb.errors import UsageError
from llmb.reference.shapes import LlamaShape, Shape
from llmb.workloads.table import WORKLOADS, Workload

__all__ = ["WORKLOADS", "Workload", "find"]


def find(name: str, overrides: Mapping[ShapeName, int]) -> Workload:
    """Return workload ``name`` with ``overrides`` applied to its shape.

    Raises:
        UsageError: unknown name, or shapes that make no model.
    """
    if name not in WORKLOADS:
        known = ", ".join(WORKLOADS)
        raise UsageError(f"unknown workload {name!r}: choose one of {known}")
    base = WORKLOADS[name]
    shape = _override(base.shape, overrides)
    _check(shape)
    return replace(base, shape=shape)


def _override(shape: Shape, overrides: Mapping[ShapeName, int]) -> Shape:
    for field, value in overrides.items():
        if value < 1:
            raise UsageError(f"--{field.replace('_', '-')} is {value}: it must be at least 1")
    if isinstance(shape, LlamaShape) and "num_attention_heads" in overrides:
        # As many query heads share a key-value head as before: in the fixed workload, one.
        grouped = shape.num_attention_heads // shape.num_key_value_heads
        heads = overrides["num_attention_heads"]
        shape = replace(shape, num_key_value_heads=max(1, heads // grouped))
    return replace(shape, **overrides)


def _check(shape: Shape) -> None:
    heads, hidden = shape.num_attention_heads, shape.hidden_size
    if hidden % heads:
        raise UsageError(
            f"--hidden-size {hidden} is not divisible by --num-attention-heads {heads}: "
            "change one of them"
        )
    if isinstance(shape, LlamaShape):
        if shape.head_dim % 2:
            raise UsageError(
                f"--hidden-size {hidden} / --num-attention-heads {heads} gives heads of "
                f"{shape.head_dim}: rotary positions need an even head size"
            )
        if heads % shape.num_key_value_heads:
            raise UsageError(
                f"--num-attention-heads {heads} cannot share {shape.num_key_value_heads} key-value "
                f"heads: use a multiple of {shape.num_key_value_heads}"
            )
    elif shape.sequence_length > shape.max_position_embeddings:
        raise UsageError(
            f"--sequence-length {shape.sequence_length} is longer than the model has positions: "
            f"use at most {shape.max_position_embeddings}"
        )
    if shape.sequence_length < 2:
        raise UsageError("--sequence-length 1 leaves no next token to predict: use at least 2")
