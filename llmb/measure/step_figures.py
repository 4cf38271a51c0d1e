"""Computes the source documents' figures from the time of a training step, each by its formula.

Every figure comes from the seconds of a step. The seconds are measured in a run, or predicted in a
projection (``llmb.projection``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llmb.families import family_of
from llmb.records.run_record import Metric
from llmb.workloads import Workload
from llmb.workloads.conventions import CONVENTIONS

#: Of the NeMo document: the global batch size (sequences) for node-hours, and devices per node.
TARGET_GLOBAL_BATCH = 4096
DEVICES_PER_NODE = 4
_NODE_HOURS = (
    "nodes x 100000 x (4096 / global batch) / iterations_per_second / 3600, "
    "nodes = devices / 4 rounded up"
)


@dataclass(frozen=True)
class StepFigures:
    """A training step: seconds, and the sequences and tokens of all devices together."""

    seconds: float
    sequences: int
    tokens: float
    world_size: int

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices together."""
        return self.tokens / self.seconds


def of_document(
    workload: Workload, step: StepFigures, peak_flops: float | None
) -> Iterator[Metric]:
    """Yield the figures of ``workload``'s document; ``peak_flops`` is one device's, in FLOP/s."""
    if workload.document == "alcf":
        yield from alcf(workload, step)
    else:
        yield tflops_per_device(workload, step)
    if workload.document == "llm-train-bench" and peak_flops is not None:
        yield mfu_percent(workload, step, peak_flops)
    if not family_of(workload.shape).causal:
        yield from rates(step)
    if workload.document == "nemo":
        yield node_hours_per_100k_steps(step)


def tflops_per_device(workload: Workload, step: StepFigures) -> Metric:
    """Return the model TFLOP/s of one device, counted as in the workload's source document."""
    flops = CONVENTIONS[workload.convention].per_token(workload.shape)
    return Metric(
        name="tflops_per_device",
        value=step.tokens_per_second * flops / step.world_size / 1e12,
        unit="TFLOP/s",
        formula=f"tokens/s x FLOPs a token by {workload.convention} / devices / 1e12",
    )


def alcf(workload: Workload, step: StepFigures) -> Iterator[Metric]:
    """Yield the ALCF 1T document's figures: FOM = (6 s d^2 + s^2 d) b L / T, and two TFLOP/s.

    The document does not define the numerator. The numerator is half of the forward multiply-adds
    of a model with a two-matrix feed-forward. Read in MAC/s, the model's FLOP/s are 12 times the
    FOM: forward and backward are 6 times the numerator, and a multiply-add is 2 FLOPs. gemm_full
    counts the model as trained, third feed-forward matrix and head included.
    """
    fom = step.tokens_per_second * CONVENTIONS["alcf_fom"].per_token(workload.shape)
    full = CONVENTIONS["gemm_full"].per_token(workload.shape)
    yield Metric(
        name="mean_step_time_s",
        value=step.seconds,
        unit="s",
        formula="T = (STOP - START) / timed steps",
    )
    yield Metric(name="fom", value=fom, unit="MAC/s", formula="FOM = (6 s d^2 + s^2 d) b L / T")
    yield Metric(
        name="tflops_per_device",
        value=12 * fom / step.world_size / 1e12,
        unit="TFLOP/s",
        formula="12 x FOM / devices / 1e12: the document's two-matrix feed-forward, no head",
    )
    yield Metric(
        name="tflops_per_device_gemm_full",
        value=step.tokens_per_second * full / step.world_size / 1e12,
        unit="TFLOP/s",
        formula="tokens/s x FLOPs a token by gemm_full / devices / 1e12",
    )


def mfu_percent(workload: Workload, step: StepFigures, peak_flops: float) -> Metric:
    """Return model FLOP/s, by the document's own count, over the datasheet peak, in per cent.

    Example: 400 TFLOP/s of a peak of 1,000 TFLOP/s is 40 %.
    """
    achieved = tflops_per_device(workload, step).value * 1e12
    return Metric(
        name="mfu_percent",
        value=100 * achieved / peak_flops,
        unit="%",
        formula="100 x tflops_per_device x 1e12 / datasheet peak",
    )


def rates(step: StepFigures) -> Iterator[Metric]:
    """Yield sequences per second and steps per second."""
    yield Metric(
        name="samples_per_second",
        value=step.sequences / step.seconds,
        unit="1/s",
        formula="sequences a step x timed steps / (STOP - START)",
    )
    yield Metric(
        name="iterations_per_second",
        value=1 / step.seconds,
        unit="1/s",
        formula="timed steps / (STOP - START)",
    )


def node_hours_per_100k_steps(step: StepFigures) -> Metric:
    """Return the NeMo document's node-hours of 100,000 steps of 4096 sequences."""
    nodes = math.ceil(step.world_size / DEVICES_PER_NODE)
    hours = node_hours(nodes, 100_000, TARGET_GLOBAL_BATCH / step.sequences, 1 / step.seconds)
    return Metric(name="node_hours_per_100k_steps", value=hours, unit="node h", formula=_NODE_HOURS)


def node_hours(nodes: int, steps: float, batches: float, iterations_per_second: float) -> float:
    """Return the node-hours of ``steps`` steps, each worth ``batches`` measured iterations.

    The arithmetic is the NeMo document's. Example: a step of 4096 sequences counts as four
    iterations of 1024 sequences.
    """
    return nodes * steps * batches / iterations_per_second / 3600
