"""One training step, given or measured, and the figures that source documents derive from it."""

from __future__ import annotations

from collections.abc import Iterator

from llmb import workloads
from llmb.config import Mode
from llmb.errors import BundleRefusedError, UsageError
from llmb.measure import metrics, step_figures
from llmb.measure.step_figures import StepFigures
from llmb.records.run_record import Metric, RunRecord
from llmb.workloads import Workload
from llmb.workloads.conventions import CONVENTIONS

#: Conventions in multiply-adds (MAC) instead of FLOPs.
_MULTIPLY_ADDS = ("alcf_mac", "alcf_fom")


def given_step(
    workload: Workload, seconds: float, global_batch: int | None, world_size: int | None
) -> StepFigures:
    """Return a step of ``seconds``; None: the value of the workload's original.

    Raises:
        UsageError: the original gives no value, or the workload is not trained.
    """
    if Mode.TRAIN not in workload.modes:
        raise UsageError(f"workload {workload.name!r} is not trained: it has no training step")
    devices = world_size or workload.world_size
    if devices is None:
        raise UsageError(f"{workload.name!r} names no devices: say how many with --world-size")
    sequences = global_batch or workload.global_batch_size(devices)
    if sequences is None:
        raise UsageError(
            f"{workload.name!r} has no batch of its own on {devices} devices (one replica is "
            f"{workload.tp * workload.pp}): say how many sequences a step has with --global-batch"
        )
    return StepFigures(seconds, sequences, sequences * workload.shape.sequence_length, devices)


def measured_step(record: RunRecord) -> tuple[Workload, StepFigures]:
    """Return the workload of ``record``, and the mean step on all devices of the run.

    Raises:
        UsageError: the run is not a training, or the workload is unknown.
        BundleRefusedError: the time stamps give no step time, such as STOP before START.
    """
    if record.config.mode is not Mode.TRAIN:
        raise UsageError(
            f"the record is of mode {record.config.mode.value}: only training has steps"
        )
    timing, tokens = record.timing, record.workload.tokens_per_step
    if timing.stop_ns <= timing.start_ns or tokens < 1:
        raise BundleRefusedError("the record's window has no length, or its steps have no tokens")
    workload = workloads.of(record.config)
    return workload, metrics.step_of(record.config, timing, tokens)


def figures(
    workload: Workload, step: StepFigures, peak_flops: float | None = None
) -> Iterator[Metric]:
    """Yield every figure derived from ``step``; ``peak_flops`` is the FLOP/s of one device."""
    rate = step.tokens_per_second
    yield _figure("step_time_s", step.seconds, "s", "T")
    yield _figure("tokens_per_second", rate, "tokens/s", "b s / T")
    each = rate / step.world_size
    yield _figure("tokens_per_second_per_device", each, "tokens/s", "b s / T / devices")
    yield _figure("samples_per_second", step.sequences / step.seconds, "1/s", "b / T")
    yield _figure("iterations_per_second", 1 / step.seconds, "1/s", "1 / T")
    if workload.document == "alcf":
        fom = next(m for m in step_figures.alcf(workload, step) if m.name == "fom")
        yield fom
        both = 12 * fom.value / step.world_size / 1e12
        formula = "12 x FOM / devices: of a two-matrix feed-forward, no head, two FLOPs a MAC"
        yield _figure("12 x FOM, per device", both, "TFLOP/s", formula)
    if workload.document == "nemo":
        yield step_figures.node_hours_per_100k_steps(step)
    for name, convention in CONVENTIONS.items():
        value = each * convention.per_token(workload.shape) / 1e12
        unit = "TMAC/s" if name in _MULTIPLY_ADDS else "TFLOP/s"
        yield _figure(f"{name}, per device", value, unit, convention.counts)
    if peak_flops is not None:
        yield from _mfu(workload, step, peak_flops)


def _mfu(workload: Workload, step: StepFigures, peak_flops: float) -> Iterator[Metric]:
    """Yield MFU by gemm_full, and MFU by the document's own FLOP count."""
    own, rate = workload.convention, step.tokens_per_second / step.world_size
    counted = {name: CONVENTIONS[name].per_token(workload.shape) for name in ("gemm_full", own)}
    if own == "alcf_fom":  # FOM counts MACs: 12 x FOM is the FLOPs of a two-matrix model
        counted[own] *= 12
    for name, flops in counted.items():
        times = "12 x " if name == "alcf_fom" else ""
        formula = f"100 x {times}{name}, per device / peak"
        yield _figure(f"MFU by {name}", 100 * rate * flops / peak_flops, "%", formula)


def _figure(name: str, value: float, unit: str, formula: str) -> Metric:
    return Metric(name=name, value=value, unit=unit, formula=formula)
