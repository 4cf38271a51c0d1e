"""Estimates the duration of a run on a processor from measured rates. No torch.

The time of a run is process starts, ceilings, steps, and the audit's passes: the same forward and
backward work again, with the pristine model. The constants were fitted on eleven full runs
(``benchmarks/RESULTS.md``, "Estimated and real times").
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from llmb.config import AuditMode, Mode, Precision, RunConfig
from llmb.records import draws
from llmb.records.run_record import Rates
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import Shape
from llmb.workloads.arithmetic import flops_per_token, gemms, parameter_count

#: Processes that import torch before, between and after the phases of a run, and the other work of
#: the same processes, in units of one process start.
_STARTS = 16
#: Steps beside the warmup and timed steps: half a fence block before START, and steps after STOP.
_MORE_STEPS = 7.5
#: Forward and backward passes of the audit, without those of judged steps. ``_OWN_PASSES``: of
#: worker, honest run and reference in the declared format. ``_WIDE_PASSES``: in the reference's
#: wider format, for example float32 for BF16.
_OWN_PASSES = {AuditMode.OFF: 0.0, AuditMode.QUICK: 17.0, AuditMode.FULL: 20.0}
_WIDE_PASSES = {AuditMode.OFF: 0.0, AuditMode.QUICK: 1.2, AuditMode.FULL: 1.2}
#: Passes in the declared format for each judged step (rule G1): if an honest run repeats every step
#: (rule L1), if not, and with dropout. Each judged step has one wide pass more.
_OWN_OF_JUDGED, _OWN_WITHOUT_LEDGER, _OWN_WITH_DROPOUT = 2.0, 4.0, 6.0
#: Bytes moved per parameter. ``_ADAMW``: in AdamW's step, per byte of a value. ``_WIDENED``: for
#: widening a weight and narrowing the gradient. ``_AUDIT``: in the whole audit (weights read, cast
#: and hashed). ``_RANK``: for the rank of a weight in a judged step, and at first (rule W1, where
#: rule L1 does not compare every step).
_ADAMW, _WIDENED, _AUDIT, _RANK = 10, 26, 1800, 1500
#: Bytes moved per token outside of matrix products, forward and backward. ``_ELEMENTWISE``: per
#: layer and channel (norms, rotation, SwiGLU, residuals). ``_LOGITS``: per vocabulary entry (logits
#: and softmax).
_ELEMENTWISE, _LOGITS = 2200, 60
#: Time of products in a step, divided by the time in the best round of a single product.
_IN_A_STEP = 1.25
#: ``_MEASURING_S``: least seconds for the estimate's rates and both ceilings, before and after.
#: ``_CEILING_TRIES``: repetitions of each product for a ceiling.
_MEASURING_S, _CEILING_TRIES = 12.5, 5


def reference_dtype(precision: Precision) -> str:
    """Return torch's name of the audit reference's dtype: float64 for float32, else float32."""
    return "float64" if precision.dtype == "float32" else "float32"


def needed_dtypes(precision: Precision) -> tuple[str, ...]:
    """Return torch's names of the dtypes with rates that ``estimate_s`` needs for ``precision``.

    Example: BF16 needs ``("bfloat16", "float32")``.
    """
    return (precision.computing.dtype, reference_dtype(precision))


def step_s(shape: Shape, config: RunConfig, rates: Rates) -> float:
    """Return the estimated seconds of one step."""
    moved = parameter_count(shape) * config.precision.bytes_per_value * _ADAMW
    return _pass_s(shape, config, rates) + moved / rates.bytes_per_second


def estimate_s(shape: Shape, config: RunConfig, rates: Rates, start_s: float) -> float:
    """Return the estimated seconds of a full run, audit included.

    ``start_s`` is the start time in seconds of a process with torch on the current host.
    """
    steps = config.warmup_steps + config.timed_steps + _MORE_STEPS
    repeat_s = steps * step_s(shape, config, rates) + audit_s(shape, config, rates).total
    return _STARTS * start_s + _ceilings_s(shape, config, rates) + config.repeats * repeat_s


@dataclass(frozen=True)
class AuditSeconds:
    """The estimated seconds of the audit of one repeat, by kind of work."""

    #: Passes in the declared format, by worker, honest run and reference together.
    own: float
    #: Passes of the reference in the wider format.
    wide: float
    #: Weights read, cast and hashed.
    weights: float
    #: Replayed steps (rule L1).
    replay: float

    @property
    def total(self) -> float:
        """Seconds of the whole audit."""
        return self.own + self.wide + self.weights + self.replay


def audit_s(shape: Shape, config: RunConfig, rates: Rates) -> AuditSeconds:
    """Return the estimated seconds of the audit of one repeat; all 0 for ``--audit off``."""
    if config.audit is AuditMode.OFF:
        return AuditSeconds(0.0, 0.0, 0.0, 0.0)
    wide = rates.flops_per_second[reference_dtype(config.precision)]
    steps = config.warmup_steps + config.timed_steps + _MORE_STEPS
    return AuditSeconds(
        own=_own_passes(shape, config) * _pass_s(shape, config, rates),
        wide=_wide_passes(shape, config) * _IN_A_STEP * _flops(shape, config) / wide,
        weights=parameter_count(shape) * _of_weights(shape, config) / rates.bytes_per_second,
        replay=_replay_s(steps, shape, config, rates),
    )


def recomputation_s(
    shape: Shape, config: RunConfig, rates: Rates, steps: int, start_s: float
) -> float:
    """Return the estimated seconds for recomputing ``steps`` steps of a bundle's run once.

    The last step and the probes follow: the step three times, a probe of one sequence four times.
    ``config`` describes one process that does the work of all ranks.
    """
    wide = rates.flops_per_second[reference_dtype(config.precision)]
    probe = config.model_copy(update={"batch_size": 1, "accumulate": 1})
    passes_s = 2 * _pass_s(shape, config, rates) + 3 * _pass_s(shape, probe, rates)
    passes_s += _IN_A_STEP * (_flops(shape, config) + 2 * _flops(shape, probe)) / wide
    weights_s = parameter_count(shape) * _AUDIT / rates.bytes_per_second
    return 2 * start_s + steps * step_s(shape, config, rates) + passes_s + weights_s


def _own_passes(shape: Shape, config: RunConfig) -> float:
    """Return the audit's passes in the declared format, averaged over the random draws."""
    of_judged = _OWN_OF_JUDGED if _is_exact(shape, config) else _OWN_WITHOUT_LEDGER
    if getattr(shape, "dropout", 0.0):
        of_judged = _OWN_WITH_DROPOUT
    return _OWN_PASSES[config.audit] + _judged(shape, config) * of_judged


def _wide_passes(shape: Shape, config: RunConfig) -> float:
    """Return the audit's passes in the wider format, averaged over the random draws."""
    return _WIDE_PASSES[config.audit] + _judged(shape, config)


def _of_weights(shape: Shape, config: RunConfig) -> float:
    """Return the bytes moved per parameter where the audit looks at weights."""
    looks = config.mode is Mode.TRAIN and judged_steps(shape, config) == draws.JUDGED_ALONE
    return _AUDIT + looks * _RANK * (1 + _judged(shape, config))


def _judged(shape: Shape, config: RunConfig) -> float:
    """Return the mean number of judged steps (rule G1)."""
    return statistics.fmean(judged_steps(shape, config))


def judged_steps(shape: Shape, config: RunConfig) -> tuple[int, int]:
    """Return the least and the most judged steps of a window (rule G1)."""
    return draws.JUDGED if _is_exact(shape, config) else draws.JUDGED_ALONE


def _is_exact(shape: Shape, config: RunConfig) -> bool:
    """Tell whether rule L1 compares all steps, and more than the directions of steps."""
    dropout = bool(getattr(shape, "dropout", 0.0))
    why = draws.why_rough(config.precision, dropout=dropout)
    few = config.parallelism.world_size > draws.RANKS_OF_A_NODE
    return why is None and not few and _is_replayed(shape, config)


def _is_replayed(shape: Shape, config: RunConfig) -> bool:
    """Tell whether steps of ``config`` can be replayed (rule L1)."""
    why = draws.why_no_ledger(
        config.mode.value,
        config.precision,
        mesh=config.parallelism,
        state=draws.state_bytes(parameter_count(shape), config.precision, OFFICIAL_OPTIMIZER),
    )
    return why is None


def _replay_s(steps: float, shape: Shape, config: RunConfig, rates: Rates) -> float:
    """Return the seconds for replaying steps (rule L1), averaged over the random draws."""
    if not _is_replayed(shape, config):
        return 0.0
    # One process replays all replicas in turn.
    mesh, complete = config.parallelism, config.audit is AuditMode.COMPLETE
    one_s = mesh.replicas * step_s(shape, config, rates)
    return replay_s(steps, one_s, mesh.world_size, complete=complete)


def replay_s(steps: float, one_s: float, ranks: int = 1, *, complete: bool = False) -> float:
    """Return the seconds for replaying ``steps`` steps of ``one_s`` seconds, averaged over draws.

    The least share of replayed steps is drawn (``Draws.least_replayed``); a replay goes on for
    ``draws.REPLAY_S`` seconds at least. ``one_s`` is the time of all ``ranks`` in one process.
    Example: 58 steps of 1 s take 58 s, 60 steps of 3 s take 133 s, and 80 steps of 10 s take 500 s;
    of 64 ranks 64 steps of 20 s take 373 s. A ``complete`` audit replays all steps.
    """
    steps = min(steps, draws.MOST_STEPS)
    fewest, every_s = draws.fewest_share(ranks), steps * one_s
    surely = max(fewest, draws.REPLAY_S / every_s if every_s else 1.0)
    if surely >= 1 or complete:
        return every_s
    if ranks <= draws.RANKS_OF_A_NODE:
        longer = (1 - surely) / (1 - fewest)  # chance that more than this is drawn
        return every_s * ((1 - longer) * surely + longer * (surely + 1) / 2)
    fewer = math.log(surely / fewest) / -math.log(fewest)
    return every_s * (fewer * surely + (1 - surely) / -math.log(fewest))


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
