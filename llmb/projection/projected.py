"""Projection of a job on described hardware: time, memory, energy, and the expected error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmb.errors import UsageError
from llmb.measure.step_figures import StepFigures
from llmb.projection import calibration
from llmb.projection.calibration import Receipt, calibrated
from llmb.projection.hardware_files import Hardware
from llmb.projection.job import Job
from llmb.projection.jobs import measured_job
from llmb.projection.step import figures, measured_step
from llmb.projection.step_time import Constants, ProjectedStep, step_time
from llmb.records.run_record import Metric, RunRecord
from llmb.workloads import Workload
from llmb.workloads.memory import Memory


@dataclass(frozen=True)
class Basis:
    """The constants of a projection, and the expected error."""

    constants: Constants
    #: Mean error of tokens/s in percent, on published rows outside the fit. Example: 6.1.
    expected_error_percent: float
    #: Sentences for the user, for example about a calibrating run.
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Projection:
    """The projection of one job. Times are in seconds, memory in bytes."""

    workload: Workload
    job: Job
    hardware: Hardware
    basis: Basis
    time: ProjectedStep
    #: Memory of the fullest rank.
    memory: Memory

    @property
    def fits(self) -> Literal["yes", "tight", "no"]:
        """Whether the fullest rank fits into the memory of a device."""
        return self.memory.fits(self.hardware.memory_bytes)

    @property
    def step(self) -> StepFigures:
        """The step of all devices: seconds, sequences, tokens, devices."""
        job = self.job
        return StepFigures(self.time.total, round(job.sequences), job.tokens, job.devices)

    @property
    def joules_per_token(self) -> float | None:
        """Energy per token in J, by the rated power of the devices; None: unknown power."""
        if self.hardware.power_w is None:
            return None
        return self.hardware.power_w * self.step.world_size / self.step.tokens_per_second

    def days(self, tokens: float) -> float:
        """Return the days that a training on ``tokens`` tokens takes."""
        return tokens / self.step.tokens_per_second / 86400

    @property
    def nodes(self) -> int:
        """Number of nodes, rounded up."""
        return -(-self.step.world_size // self.hardware.devices_per_node)

    def figures(self, tokens: float | None = None) -> Sequence[Metric]:
        """Return all derived figures with formulas; with ``tokens`` also days and node-hours."""
        found = list(figures(self.workload, self.step, self.hardware.peak_flops))
        mfu = next((m.value for m in found if m.name == "MFU by gemm_full"), None)
        if mfu is not None:
            once = self.time.products + self.time.attention
            value = mfu * (once + self.time.recompute) / once
            formula = "MFU by gemm_full x (once + recomputed) / once, by time"
            found.append(Metric(name="HFU", value=value, unit="%", formula=formula))
        joules = self.joules_per_token
        if joules is not None:
            formula = "devices x rated power / tokens/s; without hosts and network"
            found.append(Metric(name="joules_per_token", value=joules, unit="J", formula=formula))
        if tokens is not None:
            days, nodes = self.days(tokens), self.nodes
            formula = f"{tokens:g} tokens / tokens/s / 86400"
            found.append(Metric(name="days", value=days, unit="d", formula=formula))
            formula = f"days x 24 x {nodes:,} nodes"
            hours = 24 * days * nodes
            found.append(Metric(name="node_hours", value=hours, unit="node h", formula=formula))
        return found


def basis(hardware: Hardware, record: RunRecord | None = None, name: str = "") -> Basis:
    """Return the fitted constants. ``record``, a run on ``hardware``, calibrates the constants.

    Notes call the run ``name``, for example its path.

    Raises:
        UsageError: the run was on other hardware, or trains nothing.
    """
    constants, receipt, notes = calibration.constants(), calibration.receipt(), list[str]()
    error = receipt.expected_error_percent
    if record is not None:
        constants, said = _calibrated(record, name, hardware, constants, receipt)
        error = receipt.after_one_row_percent
        notes.append(said)
    notes.append(
        f"expected error {error:g} %: of {receipt.rows} published rows, tables left out of the "
        f"fit; worst row {receipt.worst_row}, {receipt.worst_error_percent:+g} %"
    )
    if hardware.name not in receipt.devices:
        notes.append(
            f"no published row is of {hardware.name}: expect more, and calibrate with --from RECORD"
        )
    return Basis(constants, error, tuple(notes))


def project(
    workload: Workload, job: Job, hardware: Hardware, by: Basis | None = None
) -> Projection:
    """Project ``job``, a training of ``workload``, on ``hardware``.

    Raises:
        UsageError: the hardware's description lacks a link that the job sends over.
    """
    by = by or basis(hardware)
    time = step_time(job, hardware, by.constants)
    return Projection(workload, job, hardware, by, time, job.memory)


def _calibrated(
    record: RunRecord, name: str, hardware: Hardware, prior: Constants, receipt: Receipt
) -> tuple[Constants, str]:
    workload, step = measured_step(record)
    job, believed = measured_job(workload, record), receipt.belief(hardware.name)

    def rate(constants: Constants) -> float:
        return job.tokens / step_time(job, hardware, constants).total

    try:
        found = calibrated(prior, step.tokens_per_second, rate, believed)
    except UsageError as error:
        raise UsageError(f"--from {name}: {error}") from None
    said = (
        f"calibrated by {name}: {step.tokens_per_second:,.4g} tokens/s measured, "
        f"{rate(prior):,.4g} projected without it, {rate(found):,.4g} with {believed:.0%} of the "
        "difference believed"
    )
    return found, said
