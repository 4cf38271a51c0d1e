"""FLOPs per token as each source document counts FLOPs, by the name of the convention.

FLOPs mean nothing without the convention: for the same training step the formulas of the
documents are up to 21 times apart. Example: ``gemm_full`` counts the full attention square.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmb.families import family_of
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import (
    causal_flops_per_token,
    flops_per_token,
    parameter_count,
)


@dataclass(frozen=True)
class Convention:
    """A formula for the work of a token of a training step."""

    name: str
    #: The counted work, in a line.
    counts: str
    #: The source of the formula.
    source: str
    #: Per token; ``alcf_mac`` and ``alcf_fom`` count multiply-adds.
    per_token: Callable[[Shape], float]


def _six_n(shape: Shape, attention: float) -> float:
    width = shape.num_attention_heads * shape.head_dim
    per_token = 12 * shape.num_hidden_layers * width * shape.sequence_length
    return 6 * parameter_count(shape) + attention * per_token


def alcf_macs(shape: Shape) -> float:
    """Return the 1T document's L (36 d^2 + 6 s d): multiply-adds of a two-matrix feed-forward."""
    hidden, length = shape.hidden_size, shape.sequence_length
    return shape.num_hidden_layers * (36 * hidden**2 + 6 * length * hidden)


def alcf_fom(shape: Shape) -> float:
    """Return the numerator of the 1T document's figure of merit per token, L (6 d^2 + s d)."""
    return alcf_macs(shape) / 6


def megatron(shape: Shape, *, recompute: bool) -> float:
    """Return the FLOPs of Megatron-DeepSpeed's throughput calculator, without its integer bug.

    The forward pass has ``L ((1 + 2 / g + 1) d w + 2 s w + m F d) + V d`` multiply-adds, for g
    query heads per key-value head, m matrices of the feed-forward, and heads of w channels together
    (d, unless heads have a size of their own). The backward pass counts twice the forward pass.
    Recomputation adds a forward pass. A multiply-add is two FLOPs. (The original divides 2 by g in
    whole numbers: from g = 3 on, keys and values count zero.)
    """
    hidden, length = shape.hidden_size, shape.sequence_length
    family = family_of(shape)
    kv, matrices = family.key_value_heads(shape), 3 if family.is_gated(shape) else 2
    width = shape.num_attention_heads * shape.head_dim
    layer = (2 + 2 * kv / shape.num_attention_heads) * hidden * width + 2 * length * width
    layer += matrices * shape.intermediate_size * hidden
    forward = shape.num_hidden_layers * layer + shape.vocab_size * hidden
    return 2 * (4 if recompute else 3) * forward


CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention(
            "gemm_full",
            "weight products and the whole attention square, forward and backward",
            "nanotron, get_flops; the five rows of its table follow from it",
            flops_per_token,
        ),
        Convention(
            "gemm_causal",
            "as gemm_full, but half of a causal attention square",
            "what a kernel that skips masked blocks computes",
            causal_flops_per_token,
        ),
        Convention(
            "6n_full",
            "6 N + 12 L H d T, N with all embeddings",
            "llm-train-bench at the document's commit",
            lambda shape: _six_n(shape, 1.0),
        ),
        Convention(
            "6n_causal",
            "6 N + 6 L H d T, N with all embeddings",
            "llm-train-bench from 2024-10-18 on",
            lambda shape: _six_n(shape, 0.5),
        ),
        Convention(
            "alcf_mac",
            "L (36 d^2 + 6 s d) multiply-adds; two-matrix feed-forward of 4 d, no head",
            "the 1T document, time to solution",
            alcf_macs,
        ),
        Convention(
            "alcf_fom",
            "L (6 d^2 + s d): a sixth of alcf_mac, so true FLOP/s are 12 times the figure",
            "the 1T document, figure of merit",
            alcf_fom,
        ),
        Convention(
            "megatron",
            "as gemm_full, counted by Megatron",
            "Megatron-DeepSpeed, throughput_calculator",
            lambda shape: megatron(shape, recompute=False),
        ),
        Convention(
            "megatron_recompute",
            "as megatron, with every forward pass computed twice",
            "Megatron-DeepSpeed, throughput_calculator with checkpointed activations",
            lambda shape: megatron(shape, recompute=True),
        ),
    )
}
