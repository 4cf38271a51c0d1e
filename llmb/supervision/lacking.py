"""What a run does without what its device lacks: sentences for the user and for the record."""

from __future__ import annotations

from llmb import workloads
from llmb.config import AuditMode, RunConfig
from llmb.records.lacks import Lacks
from llmb.supervision.memory import is_cpu
from llmb.workloads.arithmetic import flops_per_token

#: FLOPs of a step beyond which a host is not asked to compute it in float32 (minutes on 16 cores).
HOST_FLOPS = 2e13
#: FLOP/s of a host in the reference's format, for a rough estimate: 16 cores in float64.
_HOST_RATE = 3e11
#: Forward and backward of the last step, and of an audited one or of two replayed ones: whole
#: batches all.
_HEAVY_PASSES = 3


def reference_on_device(config: RunConfig, lacks: Lacks) -> bool:
    """Tell whether the reference of a whole batch is left to the device.

    The host computes it where that takes minutes at most, and where the device lacks the format.
    """
    heavy = not is_cpu(config.device) and _step_flops(config) > HOST_FLOPS
    return heavy and not lacks.wide_format(config.precision)


def host_patience_s(config: RunConfig) -> float:
    """Return how long the host may be silent over a whole batch: ten times what is estimated."""
    return 10 * _step_flops(config) / _HOST_RATE


def consequences(config: RunConfig, lacks: Lacks) -> tuple[str, ...]:
    """Return a sentence for each thing that is lacking and changes this very run."""
    found, flops = [], _step_flops(config)
    heavy = not is_cpu(config.device) and flops > HOST_FLOPS and config.audit is not AuditMode.OFF
    if heavy and lacks.wide_format(config.precision):
        lacking = "float64" if config.precision.dtype == "float32" else "full FP32 products"
        minutes = _HEAVY_PASSES * flops / _HOST_RATE / 60
        found.append(
            f"{config.device} lacks {lacking}: the host computes the reference of whole batches, "
            f"{_HEAVY_PASSES * flops:.1e} FLOPs, about {max(1, round(minutes))} min at "
            f"{_HOST_RATE / 1e12:g} TFLOP/s; a smaller --batch-size takes less"
        )
    if lacks.memory_figures:
        found.append(
            f"{config.device} lacks memory figures: peak memory is not measured, and whether the "
            "run fits is not known beforehand"
        )
    if lacks.minutes_per_program is not None:
        found.append(
            f"compiling a program takes about {lacks.minutes_per_program:g} min on {config.device}"
        )
    return tuple(found)


def _step_flops(config: RunConfig) -> float:
    workload = workloads.of(config)
    return workload.tokens_per_step(config.global_batch_size) * flops_per_token(workload.shape)
