"""Bytes that one rank of a job holds at its peak, by what they are.

Activations as counted by Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for any width of
the feed-forward network, without dropout's masks. An allocator's slack, libraries' buffers and what
collectives hold are not in it. Of the 122 published rows in ``benchmarks/projection``, which all
ran, most with the largest batch that did, none comes out above 1.09 of its device's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from llmb.projection.job import Job

#: Of mixed precision: BF16 weights, float32 gradients, float32 weights and two moments.
_WEIGHT, _GRADIENT, _STATE = 2, 4, 12
#: Of one attention score: softmax and what follows it in 16 bits.
_SCORE = 4
#: Of one logit: BF16, float32, and the gradient in float32.
_LOGIT = 10
#: Shares of a device's memory: up to the first it fits, beyond the second it does not.
_FITS, _FITS_NOT = 0.85, 1.10


@dataclass(frozen=True)
class Memory:
    """Bytes of the rank that holds most."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """Return bytes by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fits(self, memory_bytes: float) -> Literal["yes", "tight", "no"]:
        """Tell whether a device of ``memory_bytes`` holds it, or may just do so."""
        share = self.total / memory_bytes
        return "yes" if share <= _FITS else "tight" if share <= _FITS_NOT else "no"


def peak_memory(job: Job) -> Memory:
    """Return what the fullest rank holds: of a pipeline the first stage, or the last.

    The first has as many micro-batches on their way as there are stages (1F1B), somewhat more
    where each rank has several; the last has one, and the logits.
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
    # Of weights that are gathered layer by layer, two layers' are there at a time.
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
    """Return the bytes of one token that a layer keeps for its backward pass."""
    if job.recompute == "full":
        return 2 * job.model.hidden / (job.tp if job.sequence_parallel else 1)
    return _layer(job)


def _layer(job: Job) -> float:
    """Return the bytes of one token in one layer, where nothing is computed again but attention."""
    model = job.model
    # Inputs of both norms, and of both branches.
    whole = 8 * model.hidden / (job.tp if job.sequence_parallel else 1)
    attention = 2 * model.hidden * (1 + 2 * model.kv_share) + 2 * model.hidden
    network = 2 * model.intermediate * (model.up_matrices + 1)
    scores = 0.0
    if not job.fused_attention and job.recompute == "none":
        scores = _SCORE * model.heads * model.sequence
    return whole + (attention + network + scores) / job.tp
