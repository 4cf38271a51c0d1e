"""Computes the figures of one run from the record's raw stamps, each with a standard error.

A record comes from strangers: only stamps, counters and settings are trusted. A record is refused
if the headline differs from the value computed from the stamps.
"""

from __future__ import annotations

import math
import statistics as plain
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import truediv
from types import MappingProxyType
from typing import Literal

from llmb import workloads
from llmb.errors import BundleRefusedError, LlmbError
from llmb.measure import metrics, statistics
from llmb.measure.statistics import Spread, student_t975
from llmb.records.run_record import RepeatTiming, RunRecord

Better = Literal["more", "less"]
Interval = tuple[float, float]

#: Most fences of all repeats in one record; a run has a fence every ten steps.
MOST_BLOCKS = 10_000
#: Blocks (or steps) drawn in all for one standard error: takes a few seconds. Runs of up to 1,000
#: blocks get 5,000 resamples, as for the record's own interval.
_MOST_DRAWN = 5_000_000
#: Fewest resamples for a standard error. Example: more than 25,000 steps get no standard error.
_FEWEST_RESAMPLES = 200
#: Largest value of a figure in any unit: ratios of two figures stay finite.
_LARGEST = 1e100
#: Metrics computed from the mean step alone: the relative standard error equals the throughput's.
_AS_RATE = frozenset(
    {
        "tflops_per_device",
        "tflops_per_device_gemm_full",
        "fom",
        "mfu_percent",
        "samples_per_second",
        "iterations_per_second",
        "generated_tokens_per_second_overall",
    }
)
_AS_TIME = frozenset({"mean_step_time_s", "time_45_steps_s", "node_hours_per_100k_steps"})
_MORE = frozenset(
    {"generated_tokens_per_second", "generated_tokens_per_second_without_prefill", *_AS_RATE}
)
_LESS = frozenset({"best_s", "median_s", "prefill_s", *_AS_TIME})
#: Metrics of a whole step: comparable only between steps with equally many tokens.
_OF_A_STEP = frozenset(
    {
        "iterations_per_second",
        "mean_step_time_s",
        "time_45_steps_s",
        "best_s",
        "median_s",
        "prefill_s",
    }
)
#: Figures that any run may have, beside the metrics of the workload's source document.
COMMON = (
    "tokens_per_second",
    "tokens_per_second_per_device",
    "step_time_s",
    "tokens_per_joule",
    "peak_memory_bytes",
    "mfu",
    "fraction_of_ceiling",
)
#: Every figure that some run may have: a known name without a value means "not measured".
KNOWN = frozenset({*COMMON, *_MORE, *_LESS})


@dataclass(frozen=True)
class Figure:
    """One number of a run."""

    name: str
    unit: str
    value: float
    #: None if neither more nor less is better.
    better: Better | None
    #: None if the record holds too few values.
    spread: Spread | None = None
    #: Further conditions of the quantity, such as "steps of 4,096 tokens, device clock"; figures
    #: with different conditions are not compared.
    basis: str = ""

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval: the value plus and minus Student's t times the standard error."""
        if self.spread is None:
            return None
        half = student_t975(self.spread.freedom) * self.spread.error
        return max(0.0, self.value - half), self.value + half


@dataclass(frozen=True)
class Run:
    """A record and its figures by name."""

    record: RunRecord
    #: The repeat with the median throughput: source of the figures.
    headline: RepeatTiming
    figures: Mapping[str, Figure]


def run_of(record: RunRecord) -> Run:
    """Return ``record`` with every figure computed from the stamps.

    Raises:
        BundleRefusedError: no figures can be computed from the stamps, or the record's tokens/s
            differ from the stamps' tokens/s by more than 1e-9 of the value.
    """
    try:
        headline = _headline(record)
        found = {figure.name: _measurable(figure) for figure in _figures(record, headline)}
    except (LlmbError, ValueError, ArithmeticError, IndexError, plain.StatisticsError) as error:
        # A stranger's record may pass the schema and hold absurd numbers, such as 1e300 tokens.
        raise BundleRefusedError(
            f"run {record.run_id}: no figures can be made of its stamps and sizes ({error}): "
            "llmb verify says more"
        ) from None
    rate, stored = found["tokens_per_second"].value, record.result.tokens_per_second
    if not math.isclose(rate, stored, rel_tol=1e-9):
        raise BundleRefusedError(
            f"run {record.run_id} says {stored:.6g} tokens/s, its stamps give {rate:.6g}: "
            "llmb verify says more"
        )
    return Run(record=record, headline=headline, figures=MappingProxyType(found))


def times_per_token(record: RunRecord, *, by_blocks: bool) -> tuple[tuple[float, ...], ...]:
    """Return seconds per token of each timed step of each repeat.

    ``by_blocks``: of each fence block instead, on the supervisor's clock. Example: a step of 0.5 s
    with 1,000 tokens gives 0.0005.
    """
    tokens, found = record.workload.tokens_per_step, []
    for repeat in record.timing.repeats:
        if by_blocks:
            weighed = statistics.weighed(repeat, tokens)
            found.append(tuple(ns / 1e9 / count for count, ns in weighed))
        else:
            counts = repeat.step_tokens[repeat.warmup_steps :] or (tokens,) * repeat.timed_steps
            times = statistics.step_times_s(repeat)
            found.append(tuple(map(truediv, times, counts)))
    return tuple(found)


def _measurable(figure: Figure) -> Figure:
    """Return ``figure``, or refuse an impossible number: above 1e100, or below 1e-100 and not 0."""
    numbers = [figure.value, figure.spread.error if figure.spread else 0.0]
    if not all(number == 0.0 or 1 / _LARGEST < abs(number) < _LARGEST for number in numbers):
        raise ValueError(f"{figure.name} is {figure.value:g}")
    return figure


def _headline(record: RunRecord) -> RepeatTiming:
    """Return the repeat with the median throughput, after a check of all repeats' stamps."""
    repeats, tokens = record.timing.repeats, record.workload.tokens_per_step
    _check(repeats, tokens)
    rates = [statistics.tokens_per_second(repeat, tokens) for repeat in repeats]
    return repeats[statistics.median_index(rates)]


def _figures(record: RunRecord, headline: RepeatTiming) -> Iterator[Figure]:
    """Yield every figure of ``record``, the throughput first."""
    tokens, world_size = record.workload.tokens_per_step, record.config.parallelism.world_size
    value = statistics.tokens_per_second(headline, tokens)
    blocks = sum(len(repeat.fence_ns) for repeat in record.timing.repeats)
    spread = statistics.throughput_spread(record.timing.repeats, tokens, _resamples(blocks))
    rate = Figure("tokens_per_second", "tokens/s", value, "more", spread)
    yield rate
    yield _scaled(rate, "tokens_per_second_per_device", "tokens/s", rate.value / world_size)
    yield from _step_time(record, headline)
    yield from _energy(record, headline)
    if headline.peak_memory_bytes is not None:
        yield Figure("peak_memory_bytes", "B", float(headline.peak_memory_bytes), "less")
    yield from _shares(record, rate, world_size)
    yield from _metrics(record, headline, rate)


def _check(repeats: Sequence[RepeatTiming], tokens: int) -> None:
    """Refuse stamps that form no timed window, and more than ``MOST_BLOCKS`` fences."""
    if not repeats or tokens < 1:
        raise ValueError("no repeat, or steps without tokens")
    for repeat in repeats:
        steps = repeat.warmup_steps + repeat.timed_steps
        if repeat.stop_ns <= repeat.start_ns or len(repeat.step_ns) < steps:
            raise ValueError("a window without a length, or without stamps")
        if repeat.step_tokens and (len(repeat.step_tokens) < steps or min(repeat.step_tokens) < 1):
            raise ValueError("steps without tokens")
        blocks = statistics.blocks(repeat)
        if any(block.ns <= 0 or block.steps <= 0 for block in blocks):
            raise ValueError("fences that are not in rising order")
        if sum(block.steps for block in blocks) != repeat.timed_steps:
            raise ValueError("fences that do not fill the window")
    if sum(len(repeat.fence_ns) for repeat in repeats) > MOST_BLOCKS:
        raise ValueError(f"more than {MOST_BLOCKS:,} fences")


def _scaled(
    rate: Figure, name: str, unit: str, value: float, better: Better = "more", basis: str = ""
) -> Figure:
    """Return a figure proportional to the throughput or to the inverse throughput.

    The relative standard error equals the throughput's. Example: 2 % of tokens/s is 2 % of MFU.
    """
    spread = rate.spread
    if spread is not None:
        relative = spread.error / rate.value
        spread = Spread(value=value, error=relative * value, freedom=spread.freedom)
    return Figure(name, unit, value, better, spread, basis)


def _resamples(values: int) -> int:
    """Return the number of resamples for ``values`` blocks or steps, at most 5,000."""
    return min(5000, _MOST_DRAWN // max(1, values))


def _of_step(record: RunRecord) -> str:
    """Return the description of a step, such as ``steps of 4,096 tokens``."""
    if any(repeat.step_tokens for repeat in record.timing.repeats):
        return "steps of many lengths"
    return f"steps of {record.workload.tokens_per_step:,} tokens"


def _step_time(record: RunRecord, headline: RepeatTiming) -> Iterator[Figure]:
    """Yield the median step time, with the standard error of medians of resampled fence blocks."""
    summary = statistics.step_time(headline)
    if summary is None:
        return
    repeats = record.timing.repeats
    measured = [_steps_by_block(repeat) for repeat in repeats]
    resamples = _resamples(sum(repeat.timed_steps for repeat in repeats))
    spread = None
    if resamples >= _FEWEST_RESAMPLES:
        spread = statistics.spread_of(summary.median, measured, _median, resamples)
    clocks = {repeat.step_clock for repeat in repeats}
    clock = clocks.pop() if len(clocks) == 1 else "more than one"
    words = "means between fences" if clock == "enqueue" else f"{clock} clock"
    yield Figure("step_time_s", "s", summary.median, "less", spread, f"{_of_step(record)}, {words}")


def _steps_by_block(repeat: RepeatTiming) -> list[list[float]]:
    """Return the step times of each fence block, in seconds; clock ``enqueue``: only the mean."""
    times, found, first = statistics.step_times_s(repeat), [], 0
    for n, block in enumerate(statistics.blocks(repeat)):
        if repeat.step_clock == "enqueue":
            found.append([times[n]])
        else:
            found.append(list(times[first : first + block.steps]))
        first += block.steps
    return found


def _median(blocks: Sequence[Sequence[float]]) -> float:
    return plain.median([seconds for block in blocks for seconds in block])


def _energy(record: RunRecord, headline: RepeatTiming) -> Iterator[Figure]:
    """Yield tokens per joule; the standard error is between repeats, one value per repeat."""
    stored, tokens = record.result.energy, record.workload.tokens_per_step
    if stored is None:
        return
    measured = []
    for repeat in record.timing.repeats:
        start, stop = repeat.energy_start_j, repeat.energy_stop_j
        if start is None or stop is None or stop <= start:
            return
        measured.append([(statistics.window_tokens(repeat, tokens), stop - start)])
    value = _per_joule(measured[record.timing.repeats.index(headline)])
    spread = statistics.spread_of(value, measured, _per_joule) if len(measured) > 1 else None
    basis = f"{stored.source} of the {stored.scope}"
    yield Figure("tokens_per_joule", "tokens/J", value, "more", spread, basis)


def _per_joule(measured: Sequence[tuple[int, float]]) -> float:
    return sum(tokens for tokens, _ in measured) / sum(joules for _, joules in measured)


def _shares(record: RunRecord, rate: Figure, world_size: int) -> Iterator[Figure]:
    """Yield MFU and the fraction of the ceiling; the ceiling's own error is not recorded.

    The fraction of the ceiling therefore has no standard error.
    """
    mfu, ceilings = record.result.mfu, record.ceilings
    flops = rate.value * record.workload.flops_per_token / world_size
    if mfu is not None:
        yield _scaled(rate, "mfu", "", flops / mfu.peak_flops)
    if ceilings is not None and record.result.fraction_of_ceiling is not None:
        attainable = max(ceilings.before.flops_per_second, ceilings.after.flops_per_second)
        yield Figure("fraction_of_ceiling", "", flops / attainable, "more")


def _metrics(record: RunRecord, headline: RepeatTiming, rate: Figure) -> Iterator[Figure]:
    """Yield the metrics of the workload's source document."""
    config, tokens = record.config, record.workload.tokens_per_step
    peak = record.result.mfu.peak_flops if record.result.mfu else None
    workload = workloads.of(config)
    for metric in metrics.metrics_of(config, workload, headline, tokens, peak):
        basis = _of_step(record) if metric.name in _OF_A_STEP else ""
        better: Better | None = None
        if metric.name in _MORE | _LESS:
            better = "more" if metric.name in _MORE else "less"
        if better is not None and metric.name in _AS_RATE | _AS_TIME:
            yield _scaled(rate, metric.name, metric.unit, metric.value, better, basis)
        else:
            yield Figure(metric.name, metric.unit, metric.value, better, None, basis)
