"""Headline numbers from raw stamps. ``submission/recompute.py`` is the second, independent path."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from llmb.records.run_record import RepeatTiming, StepTime

T = TypeVar("T")
_RESAMPLES = 5000
_Z975 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True)
class StepBlock:
    """The stretch between two consecutive fences of the window."""

    steps: int
    ns: int


def blocks(timing: RepeatTiming) -> tuple[StepBlock, ...]:
    """Return the fence blocks of the timed window."""
    begin, end = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    fences = zip(timing.fence_steps, timing.fence_ns, strict=True)
    window = [(steps, ns) for steps, ns in fences if begin <= steps <= end]
    return tuple(StepBlock(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(window))


def window_tokens(timing: RepeatTiming, tokens_per_step: int) -> int:
    """Return the tokens between START and STOP."""
    return _tokens(timing, tokens_per_step, timing.warmup_steps, timing.timed_steps)


def tokens_per_second(timing: RepeatTiming, tokens_per_step: int) -> float:
    """Return tokens between START and STOP over (STOP - START), on the supervisor's clock."""
    return window_tokens(timing, tokens_per_step) / ((timing.stop_ns - timing.start_ns) / 1e9)


def _tokens(timing: RepeatTiming, tokens_per_step: int, first: int, steps: int) -> int:
    """Return the tokens of ``steps`` steps from step ``first`` on, the first of all being 0."""
    if timing.step_tokens:
        return sum(timing.step_tokens[first : first + steps])
    return tokens_per_step * steps


def weighed(timing: RepeatTiming, tokens_per_step: int) -> tuple[tuple[int, int], ...]:
    """Return tokens and nanoseconds of each fence block of the window."""
    found, first = [], timing.warmup_steps
    for block in blocks(timing):
        found.append((_tokens(timing, tokens_per_step, first, block.steps), block.ns))
        first += block.steps
    return tuple(found)


@dataclass(frozen=True)
class Sample:
    """A call or generation within the window: the mean one between two consecutive fences."""

    seconds: float
    tokens: float
    #: New tokens beyond the first of each sequence, which the prefill brings, and their seconds.
    decoded: float
    decoding_s: float


Samples = tuple[Sample, ...]


def samples(timing: RepeatTiming, tokens_per_step: int, sequences: int) -> Samples:
    """Return the window's calls of ``sequences`` sequences; fences come after every one of them."""
    found, first = [], timing.warmup_steps
    for block in blocks(timing):
        tokens = _tokens(timing, tokens_per_step, first, block.steps)
        prefill = sum(timing.prefill_ns[first : first + block.steps])
        found.append(
            Sample(
                seconds=block.ns / block.steps / 1e9,
                tokens=tokens / block.steps,
                decoded=tokens / block.steps - sequences,
                decoding_s=(block.ns - prefill) / block.steps / 1e9,
            )
        )
        first += block.steps
    return tuple(found)


def median_index(values: Sequence[float]) -> int:
    """Return the index of the median; of the lower one where the count is even."""
    return sorted(range(len(values)), key=lambda i: (values[i], i))[(len(values) - 1) // 2]


@dataclass(frozen=True)
class Spread:
    """A figure and its standard error, which rests on ``freedom`` + 1 values."""

    value: float
    error: float
    freedom: int


def confidence_interval(
    repeats: Sequence[RepeatTiming], tokens_per_step: int
) -> tuple[float, float] | None:
    """Return the 95 % interval of tokens per second, None with fewer than two fence blocks.

    The headline plus and minus Student's t times the bootstrap standard error. Bootstrap: repeats
    are resampled, then the fence blocks within each; the statistic is the lower median over
    repeats. A bootstrap of n values is narrow by sqrt((n - 1) / n) (Hesterberg 2015, "What Teachers
    Should Know About the Bootstrap"), and few values need t. What counts as a value is the repeat,
    or the fence block where there is one repeat only: blocks of one process vary together.
    """
    spread = throughput_spread(repeats, tokens_per_step, _RESAMPLES)
    if spread is None:
        return None
    half = student_t975(spread.freedom) * spread.error
    return max(0.0, spread.value - half), spread.value + half


def throughput_spread(
    repeats: Sequence[RepeatTiming], tokens_per_step: int, resamples: int = _RESAMPLES
) -> Spread | None:
    """Return the headline tokens per second and its standard error, as for the interval."""
    if not repeats:
        return None
    measured = [weighed(timing, tokens_per_step) for timing in repeats]
    rates = [tokens_per_second(timing, tokens_per_step) for timing in repeats]
    return spread_of(rates[median_index(rates)], measured, _rate, resamples)


def spread_of(
    value: float,
    measured: Sequence[Sequence[T]],
    figure: Callable[[Sequence[T]], float],
    resamples: int = _RESAMPLES,
) -> Spread | None:
    """Return ``value`` with the bootstrap standard error of ``figure``, None with too little.

    ``measured`` has the blocks of each repeat, in any form that ``figure`` takes a repeat's in.
    """
    count = len(measured) if len(measured) > 1 else sum(map(len, measured))
    if count < 2 or not all(measured):
        return None
    draw = random.Random(0)  # fixed, so that the same raw values give the same interval
    results = []
    for _ in range(resamples):
        figures = [figure(_draw_all(repeat, draw)) for repeat in _draw_all(measured, draw)]
        results.append(statistics.median_low(figures))
    error = statistics.stdev(results) * math.sqrt(count / (count - 1))
    return Spread(value=value, error=error, freedom=count - 1)


def _rate(blocks: Sequence[tuple[int, int]]) -> float:
    return sum([tokens for tokens, _ in blocks]) / sum([ns for _, ns in blocks]) * 1e9


def _draw_all(items: Sequence[T], draw: random.Random) -> list[T]:
    """Return as many of ``items`` as there are, drawn as ``draw.randrange`` does, in half its time.

    It takes as many random bits as the number of items has, again and again until they are less.
    """
    count, found = len(items), []
    width, bits = count.bit_length(), draw.getrandbits
    for _ in items:
        at = bits(width)
        while at >= count:
            at = bits(width)
        found.append(items[at])
    return found


def student_t975(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Exact for 1 and 2 degrees of freedom, from there on by the expansion in 1/freedom of Abramowitz
    and Stegun 26.7.5, which is at most 0.8 % low.
    """
    if freedom <= 2:
        return {1: 12.7062047361747, 2: 4.30265272974946}[freedom]
    z, v = _Z975, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def quantile(ordered: Sequence[float], level: float) -> float:
    """Return the ``level`` quantile of sorted values, linear between neighbours."""
    place = level * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def step_times_s(timing: RepeatTiming) -> tuple[float, ...]:
    """Return seconds per timed step, one value a step where step stamps mean something.

    Where Python runs ahead of the device they do not: then one value a fence block, its mean.
    """
    if timing.step_clock == "enqueue":
        return tuple(block.ns / block.steps / 1e9 for block in blocks(timing))
    begin = timing.warmup_steps
    stamps = timing.step_ns[begin - 1 : begin + timing.timed_steps]
    return tuple((b - a) / 1e9 for a, b in pairwise(stamps))


def step_time(timing: RepeatTiming) -> StepTime | None:
    """Return the statistics of the step time in seconds, None with fewer than two values."""
    values = sorted(step_times_s(timing))
    if len(values) < 2:
        return None
    return StepTime(
        median=quantile(values, 0.5),
        p5=quantile(values, 0.05),
        p95=quantile(values, 0.95),
        cv=statistics.stdev(values) / statistics.fmean(values),
    )
