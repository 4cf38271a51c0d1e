"""Consequences of a feature missing on the device, as sentences for the user and the record.

Example of a missing feature: float64 on the device.
"""

from __future__ import annotations

from llmb import workloads
from llmb.config import AuditMode, RunConfig, is_cpu
from llmb.records.lacks import Lacks
from llmb.workloads.arithmetic import flops_per_token

#: FLOPs of a step above which a host does not compute the step in float32 (minutes on 16 cores).
HOST_FLOPS = 2e13
#: FLOP/s of a host in the reference's format, for a rough estimate: 16 cores in float64.
_HOST_RATE = 3e11
#: Largest number of full batches, forward and backward, that the reference run computes: the last
#: step and two replayed steps (or the last step and an audited step).
_HEAVY_PASSES = 3


def reference_on_device(config: RunConfig, lacks: Lacks) -> bool:
    """Tell whether the device computes the reference of a full batch.

    The host computes a reference that takes minutes at most, or a reference in a wide format that
    the device lacks, for example float64.
    """
    heavy = not is_cpu(config.device) and _step_flops(config) > HOST_FLOPS
    return heavy and not lacks.wide_format(config.precision)


def host_patience_s(config: RunConfig) -> float:
    """Return the host's limit of silence for a full batch in seconds: ten times the estimate."""
    return 10 * _step_flops(config) / _HOST_RATE


def consequences(config: RunConfig, lacks: Lacks) -> tuple[str, ...]:
    """Return a sentence for each missing feature with an effect on this run."""
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
