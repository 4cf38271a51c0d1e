"""Parameters, FLOPs, GEMM shapes and memory of a Llama-family model, in closed form. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from llmb.config import Precision
from llmb.reference.shapes import LlamaShape


@dataclass(frozen=True)
class Gemm:
    """One matrix product of the forward pass: ``[tokens, k] @ [k, n]``, ``count`` times a step."""

    name: str
    k: int
    n: int
    count: int


def gemms(shape: LlamaShape) -> tuple[Gemm, ...]:
    """Return the weight products of one forward pass, equal shapes grouped."""
    hidden, ffn, layers = shape.hidden_size, shape.intermediate_size, shape.num_hidden_layers
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    return (
        Gemm("q_proj", hidden, queries, layers),
        Gemm("k_proj, v_proj", hidden, keys, 2 * layers),
        Gemm("o_proj", queries, hidden, layers),
        Gemm("gate_proj, up_proj", hidden, ffn, 2 * layers),
        Gemm("down_proj", ffn, hidden, layers),
        Gemm("lm_head", hidden, shape.vocab_size, 1),
    )


def parameter_count(shape: LlamaShape) -> int:
    """Return the number of parameters: matrices, two norms a layer, final norm, embedding."""
    matrices = sum(g.k * g.n * g.count for g in gemms(shape))
    norms = (2 * shape.num_hidden_layers + 1) * shape.hidden_size
    return matrices + norms + shape.vocab_size * shape.hidden_size


def flops_per_token(shape: LlamaShape) -> int:
    """Return training FLOPs per token: 3 x 2 x (weight products + full-square attention).

    One multiply-add is two FLOPs; backward is twice forward; the embedding lookup counts nothing.
    Full-square attention (2 * T * width for QK^T and for PV) is the source's own explicit form.
    """
    return _training_flops(shape, keys=2 * shape.sequence_length)


def causal_flops_per_token(shape: LlamaShape) -> int:
    """Return the training FLOPs per token that no implementation can do without.

    As ``flops_per_token``, but of the attention square only the causal half with its diagonal,
    T (T + 1) / 2 pairs of T^2, which a kernel that skips masked blocks computes. What an honest
    run is compared by is the full square; what a device must have done at least is this.
    """
    return _training_flops(shape, keys=shape.sequence_length + 1)


def _training_flops(shape: LlamaShape, keys: int) -> int:
    """Return FLOPs per token that meets ``keys`` keys, QK^T and PV counted together."""
    weights = sum(g.k * g.n * g.count for g in gemms(shape))
    width = shape.num_attention_heads * shape.head_dim
    return 6 * (weights + keys * width * shape.num_hidden_layers)


def training_bytes(shape: LlamaShape, precision: Precision, batch_size: int) -> int:
    """Return the estimated peak bytes of a training step: state plus saved activations.

    State is exact: weights, gradients and AdamW's two moments in the stored dtype. Activations
    count what autograd saves per token for each layer (norms in float32, projections, attention,
    the gated product) and the head (logits, their gradient, and the log-softmax).
    """
    value = precision.bytes_per_value
    state = 4 * value * parameter_count(shape)
    tokens = batch_size * shape.sequence_length
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    per_layer = hidden * (8 * value + 4 * 4) + ffn * 4 * value
    head = 3 * shape.vocab_size * value + hidden * (2 * value + 2 * 4)
    return state + tokens * (shape.num_hidden_layers * per_layer + head)
