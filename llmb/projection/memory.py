"""Peak memory of one rank of a job: weights, gradients, optimizer, activations, logits.

Activations are counted as in Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for any width
of the feed-forward network, without dropout masks. Not counted: unused memory of the allocator,
buffers of libraries, buffers of collectives. Check: all 122 published rows in
``benchmarks/projection`` ran, most with the largest possible batch; the formula gives at most 1.09
of the device's memory for every row.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from llmb.projection.job import Job

#: Bytes per parameter in mixed precision: BF16 weight; float32 gradient; float32 weight and two
#: float32 moments.
_WEIGHT, _GRADIENT, _STATE = 2, 4, 12
#: Bytes per attention score: softmax and dropout output, 16 bits each.
_SCORE = 4
#: Bytes per logit: BF16, float32, and the float32 gradient.
_LOGIT = 10
#: Shares of a device's memory: "yes" up to 0.85, "tight" up to 1.10, "no" above.
_FITS, _FITS_NOT = 0.85, 1.10


@dataclass(frozen=True)
class Memory:
    """Bytes of the fullest rank."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Sum of all parts in bytes."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return bytes by name. Example: ``{"weights": 1.4e10, ...}``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, memory_bytes: float) -> Literal["yes", "tight", "no"]:
        """Tell whether a device of ``memory_bytes`` has enough memory; "tight": perhaps."""
        share = self.total / memory_bytes
        return "yes" if share <= _FITS else "tight" if share <= _FITS_NOT else "no"


def peak_memory(job: Job) -> Memory:
    """Return the memory of the fullest rank: in a pipeline, of the first or the last rank.

    The first rank has as many micro-batches in flight as the pipeline has stages (1F1B), and
    somewhat more with several stages per rank. The last rank has one micro-batch, and the logits.
    """
    model, parameters = job.model, job.rank_parameters
    tokens = job.micro_batch * model.sequence
    micro = model.layers / job.pp * tokens * _kept_of_a_layer(job)
    working = tokens * _layer(job) if job.recompute == "full" else 0.0
    stages: float = min(job.pp, job.micro_batches)
    if job.virtual_stages > 1:
        stages *= 1 + (job.pp - 1) / (job.pp * job.virtual_stages)
    logits = _LOGIT * tokens * model.vocabulary / job.tp
    first, last = stages * micro + working, micro + working
    alone = job.pp == 1
    keeps_logits = alone or last + logits > first
    # ZeRO-3 gathers weights layer by layer: two layers are in memory at a time.
    gathered = 2 * model.layer_parameters / job.tp if job.zero == 3 else 0.0
    shared = {level: job.dp if job.zero >= level else 1 for level in (1, 2, 3)}
    return Memory(
        weights=_WEIGHT * (parameters / shared[3] + gathered),
        gradients=_GRADIENT * parameters / shared[2] + (_WEIGHT * gathered),
        optimizer=_STATE * parameters / shared[1],
        activations=last if keeps_logits and not alone else first,
        logits=logits if keeps_logits else 0.0,
    )


def _kept_of_a_layer(job: Job) -> float:
    """Return the bytes per token in a layer's activations for the backward pass."""
    if job.recompute == "full":
        return 2 * job.model.hidden / (job.tp if job.sequence_parallel else 1)
    return _layer(job)


def _layer(job: Job) -> float:
    """Return a layer's activation bytes per token, with at most attention recomputed."""
    model = job.model
    # Inputs of both norms, and of attention and feed-forward.
    whole = 8 * model.hidden / (job.tp if job.sequence_parallel else 1)
    attention = 2 * model.width * (1 + 2 * model.kv_share) + 2 * model.width
    network = 2 * model.intermediate * (model.up_matrices + 1)
    scores = 0.0
    if not job.fused_attention and job.recompute == "none":
        scores = _SCORE * model.heads * model.sequence
    return whole + (attention + network + scores) / job.tp
