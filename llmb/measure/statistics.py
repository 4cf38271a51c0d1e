"""Computes headline numbers from raw stamps.

``submission/recompute.py`` is the second, independent computation.
"""

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
#: Fewer values give an interval that is not printed: 2 values have 12.7 standard errors.
LEAST_SHOWN = 3
_Z975 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


@dataclass(frozen=True)
class StepBlock:
    """Number of steps, and nanoseconds, between two consecutive fences of the window."""

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
    """Return tokens between START and STOP over (STOP - START), on the supervisor's clock.

    Example: 50 steps of 4,096 tokens in 10 s are 20,480 tokens/s.
    """
    return window_tokens(timing, tokens_per_step) / ((timing.stop_ns - timing.start_ns) / 1e9)


def _tokens(timing: RepeatTiming, tokens_per_step: int, first: int, steps: int) -> int:
    """Return the tokens of ``steps`` steps from step ``first`` on; steps are counted from 0."""
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
    """The mean call or generation between two consecutive fences of the window."""

    seconds: float
    tokens: float
    #: New tokens without the first token of each sequence (a result of the prefill), and seconds
    #: without the prefill.
    decoded: float
    decoding_s: float


Samples = tuple[Sample, ...]


def samples(timing: RepeatTiming, tokens_per_step: int, sequences: int) -> Samples:
    """Return the window's calls of ``sequences`` sequences each; a fence follows every call."""
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
    """Return the index of the median; the lower median for an even count.

    Example: 5, 1, 3, 4 gives 2, the index of 3.
    """
    return sorted(range(len(values)), key=lambda i: (values[i], i))[(len(values) - 1) // 2]


@dataclass(frozen=True)
class Spread:
    """A figure and its standard error, computed from ``freedom`` + 1 values."""

    value: float
    error: float
    freedom: int


def confidence_interval(
    repeats: Sequence[RepeatTiming], tokens_per_step: int
) -> tuple[float, float] | None:
    """Return the 95 % interval of tokens per second, None with fewer than two fence blocks.

    The interval is the headline plus and minus Student's t times the bootstrap standard error.
    Bootstrap: repeats are resampled, then the fence blocks within each repeat; the statistic is the
    lower median over repeats. A bootstrap of n values is too narrow by sqrt((n - 1) / n)
    (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"), and few values need t. n
    counts repeats, because blocks of one process vary together; with a single repeat, n counts
    fence blocks. Example: 3 repeats give 2 degrees of freedom and t = 4.30.
    """
    spread = throughput_spread(repeats, tokens_per_step, _RESAMPLES)
    if spread is None:
        return None
    half = student_t975(spread.freedom) * spread.error
    return max(0.0, spread.value - half), spread.value + half


def interval_values(repeats: Sequence[RepeatTiming]) -> int:
    """Return the number of values behind the 95 % interval: repeats, or fence blocks of one repeat.

    Example: a debug run of 20 steps has 2 fence blocks, and ``--repeats 5`` gives 5 values.
    """
    if len(repeats) != 1:
        return len(repeats)
    return len(blocks(repeats[0]))


def throughput_spread(
    repeats: Sequence[RepeatTiming], tokens_per_step: int, resamples: int = _RESAMPLES
) -> Spread | None:
    """Return the headline tokens per second and the standard error behind the 95 % interval."""
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
    """Return ``value`` with the bootstrap standard error of ``figure``, None with too few values.

    ``measured`` holds the blocks of each repeat. ``figure`` computes a value from the blocks of one
    repeat, such as tokens per second from (tokens, nanoseconds) pairs.
    """
    count = len(measured) if len(measured) > 1 else sum(map(len, measured))
    if count < 2 or not all(measured):
        return None
    draw = random.Random(0)  # fixed seed: the same raw values give the same interval
    results = []
    for _ in range(resamples):
        figures = [figure(_draw_all(repeat, draw)) for repeat in _draw_all(measured, draw)]
        results.append(statistics.median_low(figures))
    error = statistics.stdev(results) * math.sqrt(count / (count - 1))
    return Spread(value=value, error=error, freedom=count - 1)


def _rate(blocks: Sequence[tuple[int, int]]) -> float:
    return sum([tokens for tokens, _ in blocks]) / sum([ns for _, ns in blocks]) * 1e9


def _draw_all(items: Sequence[T], draw: random.Random) -> list[T]:
    """Return ``len(items)`` items drawn with replacement, as ``draw.randrange`` in half the time.

    An index is drawn from random bits, as many as ``len(items)`` has, until below ``len(items)``.
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

    Exact for 1 and 2 degrees of freedom. From 3 on: the expansion in 1/freedom of Abramowitz and
    Stegun 26.7.5, at most 0.8 % low. Example: 1 degree of freedom gives 12.7.
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
    """Return the ``level`` quantile of sorted values, interpolated linearly between neighbours."""
    place = level * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def step_times_s(timing: RepeatTiming) -> tuple[float, ...]:
    """Return the seconds of each timed step; clock ``enqueue``: the mean step of each fence block.

    With clock ``enqueue`` Python runs ahead of the device, and step stamps do not show step times.
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
