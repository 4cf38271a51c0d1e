"""Computes the metrics of a workload's source document from the raw stamps of a run.

Only time is measured. ``submission/recompute_metrics.py`` is the second, independent computation.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from llmb.config import Mode, RunConfig
from llmb.measure import step_figures
from llmb.measure.statistics import Samples, samples, window_tokens
from llmb.measure.step_figures import StepFigures
from llmb.records.run_record import Metric, RepeatTiming
from llmb.workloads import Workload
from llmb.workloads.arithmetic import flops_of

#: Steps of the Lit-GPT document's training runs.
_LITGPT_STEPS = 45


def metrics_of(
    config: RunConfig,
    workload: Workload,
    timing: RepeatTiming,
    tokens_per_step: int,
    peak_flops: float | None,
) -> tuple[Metric, ...]:
    """Return the metrics of a run of ``workload``, all derived from ``timing``.

    ``peak_flops`` is the datasheet peak of one device, in FLOP/s. TFLOP/s are left out if sequences
    differ in length, because attention work per token then differs as well. Example: mode forward
    has ``best_s`` and ``median_s``.
    """
    step = step_of(config, timing, tokens_per_step)
    found: list[Metric] = []
    if config.mode is Mode.TRAIN and not timing.step_tokens:
        found += step_figures.of_document(workload, step, peak_flops)
    elif not timing.step_tokens:
        found.append(_forward_tflops(config.mode, workload, step))
    if config.mode is Mode.TRAIN and workload.document == "litgpt":
        found.append(_litgpt_time(step))
    measured = samples(timing, tokens_per_step, step.sequences)
    if config.mode is Mode.FORWARD:
        found += _calls(measured)
    elif config.mode is Mode.GENERATE:
        found += _generated(measured, step, timing)
    return tuple(found)


def step_of(config: RunConfig, timing: RepeatTiming, tokens_per_step: int) -> StepFigures:
    """Return the mean step of the timed window."""
    mesh = config.parallelism
    return StepFigures(
        seconds=(timing.stop_ns - timing.start_ns) / 1e9 / timing.timed_steps,
        sequences=config.batch_size * mesh.dp_replicate * mesh.dp_shard,
        tokens=window_tokens(timing, tokens_per_step) / timing.timed_steps,
        world_size=mesh.world_size,
    )


def _forward_tflops(mode: Mode, workload: Workload, step: StepFigures) -> Metric:
    flops = flops_of(mode, workload.shape)
    return Metric(
        name="tflops_per_device",
        value=step.tokens_per_second * flops / step.world_size / 1e12,
        unit="TFLOP/s",
        formula="tokens/s x FLOPs a token by gemm_full, forward alone / devices / 1e12",
    )


def _litgpt_time(step: StepFigures) -> Metric:
    return Metric(
        name="time_45_steps_s",
        value=step.seconds * _LITGPT_STEPS,
        unit="s",
        formula="(STOP - START) / timed steps x 45",
    )


def _calls(measured: Samples) -> Iterator[Metric]:
    seconds = [one.seconds for one in measured]
    yield Metric(
        name="best_s",
        value=min(seconds),
        unit="s",
        formula="least time between two consecutive fences of the window, a call",
    )
    yield Metric(
        name="median_s",
        value=statistics.median(seconds),
        unit="s",
        formula="median time between two consecutive fences of the window, a call",
    )


def _generated(measured: Samples, step: StepFigures, timing: RepeatTiming) -> Iterator[Metric]:
    yield Metric(
        name="generated_tokens_per_second",
        value=max(one.tokens / one.seconds for one in measured),
        unit="tokens/s",
        formula="most new tokens a second of a step, prefill included",
    )
    yield Metric(
        name="generated_tokens_per_second_overall",
        value=step.tokens_per_second,
        unit="tokens/s",
        formula="new tokens of all timed steps / (STOP - START)",
    )
    decoding = [
        one.decoded / one.decoding_s for one in measured if one.decoded > 0 and one.decoding_s > 0
    ]
    if timing.prefill_ns and decoding:
        yield Metric(
            name="generated_tokens_per_second_without_prefill",
            value=max(decoding),
            unit="tokens/s",
            formula="most of (new tokens - one a sequence) / (time of a step - its prefill)",
        )
    if timing.prefill_ns:
        end = timing.warmup_steps + timing.timed_steps
        yield Metric(
            name="prefill_s",
            value=statistics.median(timing.prefill_ns[timing.warmup_steps : end]) / 1e9,
            unit="s",
            formula="median prefill of the timed steps",
        )
