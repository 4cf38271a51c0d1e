"""Parameters, FLOPs, GEMM shapes and memory without training, in closed form. No torch."""

from __future__ import annotations

import math
from functools import cache

from llmb.config import Mode, Precision
from llmb.families import Gemm, family_of
from llmb.reference.shapes import Shape


def gemms(shape: Shape) -> tuple[Gemm, ...]:
    """Return the weight products of one forward pass, equal shapes grouped."""
    return family_of(shape).gemms(shape)


@cache
def parameter_count(shape: Shape) -> int:
    """Return the number of parameters; a tied head counts once."""
    return sum(map(math.prod, family_of(shape).parameter_sizes(shape).values()))


def flops_per_token(shape: Shape) -> int:
    """Return training FLOPs per token: 3 x 2 x (weight products + full-square attention).

    A multiply-add is two FLOPs. The backward pass counts twice the forward pass. The embedding
    lookup counts zero. Full-square attention (2 * T * width for QK^T and for PV) is the explicit
    form of the source document.
    """
    return 3 * forward_flops_per_token(shape)


def flops_of(mode: Mode, shape: Shape) -> int:
    """Return the FLOPs per token of a step of ``mode``, counted as in ``flops_per_token``.

    In mode forward a token counts a forward pass. In mode generate a token counts its weight
    products only: attention depends on the token's position, and is small beside the products.
    """
    if mode is Mode.GENERATE:
        return _forward_flops(shape, keys=0)
    return flops_per_token(shape) if mode is Mode.TRAIN else forward_flops_per_token(shape)


def least_flops_per_token(mode: Mode, shape: Shape, *, dynamic: bool = False) -> int:
    """Return the least FLOPs per token of any correct implementation of ``mode``.

    For sequences of varying length (``dynamic``) only the weight products are counted.
    """
    if dynamic or mode is Mode.GENERATE:
        products = _forward_flops(shape, keys=0)
        return 3 * products if mode is Mode.TRAIN else products
    causal = causal_flops_per_token(shape)
    return causal if mode is Mode.TRAIN else causal // 3


def forward_flops_per_token(shape: Shape) -> int:
    """Return the FLOPs per token of a forward pass alone, as ``flops_per_token`` counts them."""
    return _forward_flops(shape, keys=2 * shape.sequence_length)


def causal_flops_per_token(shape: Shape) -> int:
    """Return the least training FLOPs per token of any correct implementation.

    Counted like ``flops_per_token``, except for causal attention: only the lower triangle with its
    diagonal counts, T (T + 1) / 2 of T^2 pairs. A kernel that skips masked blocks computes this
    triangle. Runs are compared by the full square; a device must have done at least the triangle.
    Example: for T = 2,048 the triangle has 2,098,176 of 4,194,304 pairs.
    """
    if not family_of(shape).causal:  # every token attends to all tokens
        return flops_per_token(shape)
    return 3 * _forward_flops(shape, keys=shape.sequence_length + 1)


def _forward_flops(shape: Shape, keys: int) -> int:
    """Return FLOPs per token with ``keys`` attention keys in total, for QK^T and PV together."""
    weights = sum(g.k * g.n * g.count for g in gemms(shape))
    width = shape.num_attention_heads * shape.head_dim
    return 2 * (weights + keys * width * shape.num_hidden_layers)


def inference_bytes(
    shape: Shape, precision: Precision, batch_size: int, cached: int = 0, generated: int = 0
) -> int:
    """Return the estimated peak bytes of a forward pass besides the weights.

    Without generation: the logits, and the widest tensors of a layer. With generation: keys and
    values of ``cached`` positions, and logits of ``generated`` positions, over all sequences.
    """
    value = precision.bytes_per_value
    if generated:
        kv = family_of(shape).key_value_heads(shape)
        cache = 2 * shape.num_hidden_layers * kv * shape.head_dim * value
        return cached * cache + generated * shape.vocab_size * value
    tokens = batch_size * shape.sequence_length
    layer = 4 * shape.hidden_size * value + 2 * shape.hidden_size * 4
    layer += 3 * shape.intermediate_size * value
    return tokens * (layer + shape.vocab_size * value)


def weight_bytes(shape: Shape, precision: Precision) -> int:
    """Return the bytes of the weights alone, in the stored dtype."""
    return precision.bytes_per_value * parameter_count(shape)
