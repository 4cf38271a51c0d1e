"""How long a run on a processor will take, estimated from measured rates. No torch.

A run is process starts, ceilings, steps, and the audit's passes: the same forward and backward work
made again with the pristine model. The constants were fitted on eleven whole runs
(``benchmarks/RESULTS.md``, "Estimated and real times").
"""

from __future__ import annotations

from llmb.config import AuditMode, Precision, RunConfig
from llmb.records import draws
from llmb.records.run_record import Rates
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import flops_per_token, gemms, parameter_count

#: Processes that import torch before, between and after a run's parts, and what they do besides,
#: in the time of such a start.
_STARTS = 16
#: Steps beside the timed and the untimed ones: half a block until START, and those after STOP.
_MORE_STEPS = 7.5
#: Passes of the worker, its honest run and its reference in the declared format, and those in the
#: wider format of the reference.
_OWN_PASSES = {AuditMode.OFF: 0.0, AuditMode.QUICK: 17.0, AuditMode.FULL: 20.0}
_WIDE_PASSES = {AuditMode.OFF: 0.0, AuditMode.QUICK: 3.2, AuditMode.FULL: 3.2}
#: Bytes that a parameter moves: in AdamW's step for each byte of its value, where a weight is
#: widened and its gradient narrowed, and in all of the audit (weights read, cast, hashed).
_ADAMW, _WIDENED, _AUDIT = 10, 26, 1800
#: Bytes that a token moves outside of products, forward and backward: a layer and channel (norms,
#: rotation, SwiGLU, residuals), and a word of the vocabulary (logits and their softmax).
_ELEMENTWISE, _LOGITS = 2200, 60
#: Share of the steps that is replayed in the mean where not all are.
_SHARE_REPLAYED = 0.625
#: How much longer products take in a step than in the best round of one of them.
_IN_A_STEP = 1.25
#: Seconds for the rates of the estimate and the ceilings at least, before and after together, and
#: how often each product is made for a ceiling.
_MEASURING_S, _CEILING_TRIES = 12.5, 5


def reference_dtype(precision: Precision) -> str:
    """Return torch's name of the type the audit's reference computes in."""
    return "float64" if precision.dtype == "float32" else "float32"


def needed_dtypes(precision: Precision) -> tuple[str, ...]:
    """Return torch's names of the types whose rates ``estimate_s`` needs for ``precision``."""
    return (precision.computing.dtype, reference_dtype(precision))


def step_s(shape: Shape, config: RunConfig, rates: Rates) -> float:
    """Return the estimated seconds of one step."""
    moved = parameter_count(shape) * config.precision.bytes_per_value * _ADAMW
    return _pass_s(shape, config, rates) + moved / rates.bytes_per_second


def estimate_s(shape: Shape, config: RunConfig, rates: Rates, start_s: float) -> float:
    """Return the estimated seconds of all of a run, its audit included.

    ``start_s`` is the time in which a process with torch starts here.
    """
    wide = rates.flops_per_second[reference_dtype(config.precision)]
    steps = config.warmup_steps + config.timed_steps + _MORE_STEPS
    audit_s = _OWN_PASSES[config.audit] * _pass_s(shape, config, rates)
    audit_s += _WIDE_PASSES[config.audit] * _IN_A_STEP * _flops(shape, config) / wide
    if config.audit is not AuditMode.OFF:
        audit_s += parameter_count(shape) * _AUDIT / rates.bytes_per_second
        audit_s += _replay_s(steps, shape, config, rates)
    repeat_s = steps * step_s(shape, config, rates) + audit_s
    return _STARTS * start_s + _ceilings_s(shape, config, rates) + config.repeats * repeat_s


def recomputation_s(
    shape: Shape, config: RunConfig, rates: Rates, steps: int, start_s: float
) -> float:
    """Return the estimated seconds in which ``steps`` of a bundle's run are made again, once.

    The last step and the probes follow: the step three times, a probe of one sequence four times.
    ``config`` counts as one process does all the work of the ranks.
    """
    wide = rates.flops_per_second[reference_dtype(config.precision)]
    probe = config.model_copy(update={"batch_size": 1, "accumulate": 1})
    passes_s = 2 * _pass_s(shape, config, rates) + 3 * _pass_s(shape, probe, rates)
    passes_s += _IN_A_STEP * (_flops(shape, config) + 2 * _flops(shape, probe)) / wide
    weights_s = parameter_count(shape) * _AUDIT / rates.bytes_per_second
    return 2 * start_s + steps * step_s(shape, config, rates) + passes_s + weights_s


def _replay_s(steps: float, shape: Shape, config: RunConfig, rates: Rates) -> float:
    """Return the seconds in which the steps are replayed (rule L1), in the mean over the draws."""
    why = draws.why_no_ledger(
        config.mode.value,
        config.precision,
        mesh=config.parallelism,
        state=draws.state_bytes(parameter_count(shape), config.precision, OFFICIAL_OPTIMIZER),
        dropout=getattr(shape, "dropout", 0.0),
        records_steps=False,
    )
    if why is not None:
        return 0.0
    every_s = min(steps, draws.MOST_STEPS) * step_s(shape, config, rates)
    every_s *= config.parallelism.replicas  # one process takes them one after another
    return min(every_s, max(draws.REPLAY_S, _SHARE_REPLAYED * every_s))


def _pass_s(shape: Shape, config: RunConfig, rates: Rates) -> float:
    """Return the seconds of one forward and backward pass in the declared format."""
    rate = rates.flops_per_second[config.precision.computing.dtype]
    tokens = config.batch_size * shape.sequence_length
    moved = tokens * shape.num_hidden_layers * shape.hidden_size * _ELEMENTWISE
    moved += tokens * shape.vocab_size * _LOGITS
    if config.precision.products is not None:
        moved += parameter_count(shape) * _WIDENED * config.accumulate
    return _IN_A_STEP * _flops(shape, config) / rate + moved / rates.bytes_per_second


def _flops(shape: Shape, config: RunConfig) -> float:
    return float(config.batch_size * shape.sequence_length * flops_per_token(shape))


def _ceilings_s(shape: Shape, config: RunConfig, rates: Rates) -> float:
    tokens = config.micro_batch_size * shape.sequence_length
    each = 3 * sum(2 * tokens * gemm.k * gemm.n for gemm in gemms(shape))
    rate = rates.flops_per_second[config.precision.computing.dtype]
    return max(_MEASURING_S, 2 * _CEILING_TRIES * each / rate)
