"""The second path for stamps: window, headline repeat, throughput, interval, step times, energy.

Written for bare stamps in plain Python, deliberately unlike ``llmb.measure.statistics``.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from llmb.records.run_record import RepeatTiming, RunRecord
from llmb.records.seeds import token_seed
from llmb.submission.comparison import RecordComparison

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Indices = NDArray[np.int64]

_RESAMPLES = 5000
#: A verifier spends at most 5000 x this many draws on an untrusted record.
_MOST_BLOCKS = 10_000
#: With at least this many blocks per repeat (mean), numpy draws if installed: 4,000 blocks take
#: 1.5 s instead of 11.3 s. Few blocks take longer with numpy: 6 take 0.15 s instead of 0.05 s.
_MANY_BLOCKS = 64
#: More blocks of all repeats together, and numpy draws, too: 2,016 blocks of 32 repeats take 2.5 s
#: without numpy, 1.2 s with numpy.
_MANY_OF_ALL = 2_000
#: A repeat takes 40 ms with numpy. 1,000 repeats of 10 blocks took 24 s.
_MOST_REPEATS = 64
_WORDS = 2**20
#: Most sequences of all repeats with lengths of their own to draw again (takes a second).
_MOST_SEQUENCES = 2_000_000
_SHARED = tuple(RepeatTiming.model_fields)


@dataclass(frozen=True)
class RecomputedBlock:
    """The part of the window between two neighbouring fences."""

    steps: int
    ns: int
    tokens: int


def compare_timing(record: RunRecord, comparison: RecordComparison) -> bool:
    """Compare the fields that stamps alone decide; return False if the stamps are too broken."""
    timing, result = record.timing, record.result
    tokens = record.workload.tokens_per_step
    sound = [
        _is_sound(n, repeat, comparison) and _has_sound_steps(n, repeat, record, comparison)
        for n, repeat in enumerate(timing.repeats)
    ]
    if not sound or not all(sound) or tokens < 1:
        comparison.require("timing.repeats", len(sound), bool(sound), "at least one")
        comparison.require("workload.tokens_per_step", tokens, tokens >= 1, "at least 1")
        return False
    rates = [_within(r, tokens) / ((r.stop_ns - r.start_ns) / 1e9) for r in timing.repeats]
    chosen = sorted((rate, n) for n, rate in enumerate(rates))[(len(rates) - 1) // 2][1]
    headline = timing.repeats[chosen]
    comparison.expect("timing.headline_repeat", timing.headline_repeat, chosen)
    for name in _SHARED:
        comparison.expect(f"timing.{name}", getattr(timing, name), getattr(headline, name))
    comparison.expect("result.tokens_per_second", result.tokens_per_second, rates[chosen])
    per_device = rates[chosen] / max(record.topology.world_size, 1)
    stored = result.tokens_per_second_per_device
    comparison.expect("result.tokens_per_second_per_device", stored, per_device)
    for name in ("peak_memory_bytes", "loss_first", "loss_last"):
        comparison.expect(f"result.{name}", getattr(result, name), getattr(headline, name))
    if record.duration is not None:
        real_s, windows_s = (
            record.duration.real_s,
            sum(r.stop_ns - r.start_ns for r in timing.repeats) / 1e9,
        )
        comparison.require("duration.real_s", real_s, real_s >= windows_s, f"{windows_s} or more")
    _compare_interval(record, comparison)
    _compare_step_time(record, headline, comparison)
    _compare_energy(record, headline, comparison)
    return True


def _is_sound(n: int, repeat: RepeatTiming, comparison: RecordComparison) -> bool:
    """Check that the stamps of repeat ``n`` form a timeline that contains the stored window."""
    field = f"timing.repeats.{n}"
    steps, stamps = repeat.fence_steps, repeat.fence_ns
    lengths = (len(steps), len(stamps), len(repeat.fence_worker_ns))
    if not comparison.require(f"{field}.fence_ns", lengths, len(set(lengths)) == 1, "one length"):
        return False
    rising = all(a < b for s in (steps, stamps) for a, b in pairwise(s))
    if not comparison.require(f"{field}.fence_ns", "fences", rising, "in rising order"):
        return False
    begin, end = repeat.warmup_steps, repeat.warmup_steps + repeat.timed_steps
    at = dict(zip(steps, stamps, strict=True))
    comparison.expect(f"{field}.start_ns", repeat.start_ns, at.get(begin, "a fence there"))
    comparison.expect(f"{field}.stop_ns", repeat.stop_ns, at.get(end, "a fence there"))
    enough = len(repeat.step_ns) >= end
    must = f"a stamp for each of {end} steps"
    comparison.require(f"{field}.step_ns", len(repeat.step_ns), enough, must)
    return enough and begin in at and end in at and repeat.start_ns < repeat.stop_ns


def _has_sound_steps(
    n: int, repeat: RepeatTiming, record: RunRecord, comparison: RecordComparison
) -> bool:
    """Check the single steps of repeat ``n``: tokens per step, and prefill."""
    field, steps = f"timing.repeats.{n}", repeat.warmup_steps + repeat.timed_steps
    tokens, most = repeat.step_tokens, record.workload.tokens_per_step
    fit = not tokens or (len(tokens) >= steps and min(tokens) >= 1 and max(tokens) <= most)
    must = f"nothing, or 1 to {most} for each of {steps} steps"
    comparison.require(f"{field}.step_tokens", len(tokens), fit, must)
    if fit:
        comparison.expect(f"{field}.step_tokens", tokens, _drawn(n, len(tokens) or steps, record))
    prefill = repeat.prefill_ns
    known = len(prefill) >= steps and min(prefill) >= 0 and record.workload.mode == "generate"
    must = f"nothing, or in mode generate a time for each of {steps} steps"
    comparison.require(f"{field}.prefill_ns", len(prefill), known or not prefill, must)
    return fit and (known or not prefill)


def _drawn(n: int, steps: int, record: RunRecord) -> tuple[int, ...] | None:
    """Return the tokens of each step of repeat ``n``, if lengths follow from the steps' seeds.

    None if the steps of all repeats are too many to draw again.
    """
    config, longest = record.config, record.workload.shapes.get("sequence_length")
    if not config.dynamic or not isinstance(longest, int) or longest < 1:
        return ()
    timing = record.timing.repeats[n]
    sequences = config.batch_size * config.parallelism.dp_replicate * config.parallelism.dp_shard
    if min(steps, _MOST_BLOCKS) * sequences * len(record.timing.repeats) > _MOST_SEQUENCES:
        return None
    shortest, found = min(10, longest), []
    for step in range(min(steps, _MOST_BLOCKS)):
        draw = random.Random(f"lengths:{token_seed(config.seed, n, step, timing.nonce_at(step))}")
        found.append(sum(draw.randint(shortest, longest) for _ in range(sequences)))
    return tuple(found)


def _within(repeat: RepeatTiming, tokens_per_step: int) -> int:
    """Return the number of tokens in the window."""
    steps = range(repeat.warmup_steps, repeat.warmup_steps + repeat.timed_steps)
    if repeat.step_tokens:
        return sum(repeat.step_tokens[step] for step in steps)
    return tokens_per_step * len(steps)


def _blocks(repeat: RepeatTiming, tokens_per_step: int) -> list[RecomputedBlock]:
    begin, end = repeat.warmup_steps, repeat.warmup_steps + repeat.timed_steps
    inside = [i for i, step in enumerate(repeat.fence_steps) if begin <= step <= end]
    at, stamps = repeat.fence_steps, repeat.fence_ns
    found = []
    for i, j in pairwise(inside):
        tokens = tokens_per_step * (at[j] - at[i])
        if repeat.step_tokens:
            tokens = sum(repeat.step_tokens[at[i] : at[j]])
        found.append(RecomputedBlock(at[j] - at[i], stamps[j] - stamps[i], tokens))
    return found


def _compare_interval(record: RunRecord, comparison: RecordComparison) -> None:
    tokens = record.workload.tokens_per_step
    per_repeat = [_blocks(repeat, tokens) for repeat in record.timing.repeats]
    count = sum(map(len, per_repeat))
    must = f"at most {_MOST_BLOCKS} blocks"
    few = comparison.require("timing.fence_ns", count, count <= _MOST_BLOCKS, must)
    repeats, must = len(per_repeat), f"at most {_MOST_REPEATS}"
    if comparison.require("timing.repeats", repeats, repeats <= _MOST_REPEATS, must) and few:
        comparison.expect("result.ci95", record.result.ci95, confidence_interval(per_repeat))


def confidence_interval(
    per_repeat: Sequence[Sequence[RecomputedBlock]],
) -> tuple[float, float] | None:
    """Return the 95 % interval of tokens per second, None with too few values.

    Two-stage bootstrap (repeats, then fence blocks within each) of the lower median; its standard
    deviation, corrected for few values, times Student's t, around the figure itself.
    """
    n = len(per_repeat) if len(per_repeat) > 1 else sum(map(len, per_repeat))
    if n < 2 or not all(per_repeat):
        return None
    blocks = sum(map(len, per_repeat))
    many = blocks >= min(_MANY_BLOCKS * len(per_repeat), _MANY_OF_ALL)
    many = many and find_spec("numpy") is not None
    medians = list(islice((_medians_of_many if many else _medians)(per_repeat), _RESAMPLES))
    middle = statistics.median_low([_rate(blocks) for blocks in per_repeat])
    half = _student_t(n - 1) * statistics.stdev(medians) * (n / (n - 1)) ** 0.5
    return (middle - half if half < middle else 0.0), middle + half


def _medians(per_repeat: Sequence[Sequence[RecomputedBlock]]) -> Iterator[float]:
    """Yield the lower median of the rates of each resample, without end."""
    draw = random.Random(0).choice
    while True:
        repeats = [draw(per_repeat) for _ in per_repeat]
        yield statistics.median_low([_rate([draw(blocks) for _ in blocks]) for blocks in repeats])


def _medians_of_many(per_repeat: Sequence[Sequence[RecomputedBlock]]) -> Iterator[float]:
    """Yield the same values as ``_medians``, bit for bit: numpy's Mersenne Twister is Python's."""
    import numpy as np

    draw = _choices()
    # Integers: sums have no rounding. Values too large for a 64-bit sum stay Python integers.
    most = max(max(b.tokens, b.ns) for blocks in per_repeat for b in blocks)
    kind: type = np.int64 if most < 2**63 // _MOST_BLOCKS else object
    every: list[NDArray[Any]]
    every = [np.array([(b.tokens, b.ns) for b in blocks], dtype=kind) for blocks in per_repeat]
    while True:
        rates = []
        for at in draw(len(every)):
            tokens, ns = every[at][draw(len(every[at]))].sum(axis=0).tolist()
            rates.append(tokens / ns * 1e9)
        yield statistics.median_low(rates)


def _choices() -> Callable[[int], Indices]:
    """Return a function that draws ``n`` indices below ``n``, like ``random.Random(0).choice``.

    An index is the upper bits of a 32-bit word, as many bits as ``n`` has; words that give ``n`` or
    more are skipped (CPython, Lib/random.py, ``_randbelow_with_getrandbits``).
    """
    import numpy as np

    _, (*key, position), _ = random.Random(0).getstate()
    twister = np.random.MT19937()
    words_of: Any = {"key": np.array(key, dtype=np.uint32), "pos": position}
    twister.state = {"bit_generator": "MT19937", "state": words_of}
    words, begin = twister.random_raw(_WORDS), 0
    tables: dict[int, tuple[Indices, Indices]] = {}

    def draw(count: int) -> Indices:
        nonlocal words, begin
        while True:
            if count not in tables:
                values = (words >> (32 - count.bit_length())).astype(np.int64)
                places = np.flatnonzero(values < count)
                tables[count] = places, values[places]
            places, values = tables[count]
            first = int(places.searchsorted(begin))
            if first + count <= len(places):
                begin = int(places[first + count - 1]) + 1
                return values[first : first + count]
            words, begin = np.concatenate([words[begin:], twister.random_raw(_WORDS)]), 0
            tables.clear()

    return draw


def _rate(blocks: Sequence[RecomputedBlock]) -> float:
    tokens, ns = sum(block.tokens for block in blocks), sum(block.ns for block in blocks)
    return tokens / ns * 1e9


def _student_t(nu: int) -> float:
    """Return Student's 97.5 % quantile: closed forms for 1 and 2, else its series in 1/nu."""
    if nu == 1:
        return math.tan(0.475 * math.pi)
    if nu == 2:
        return 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z = 1.959963984540054
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + (first + (second + third / nu) / nu) / nu


def _compare_step_time(
    record: RunRecord, headline: RepeatTiming, comparison: RecordComparison
) -> None:
    if headline.step_clock == "enqueue":
        samples = [block.ns / block.steps / 1e9 for block in _blocks(headline, 1)]
    else:
        window = range(headline.warmup_steps, headline.warmup_steps + headline.timed_steps)
        samples = [(headline.step_ns[i] - headline.step_ns[i - 1]) / 1e9 for i in window]
    stored = record.result.step_time_s
    if len(samples) < 2 or stored is None:
        shown = None if stored is None else stored.model_dump()
        wanted = None if len(samples) < 2 else "statistics of the steps"
        comparison.expect("result.step_time_s", shown, wanted)
        return
    twentieths = statistics.quantiles(samples, n=20, method="inclusive")
    mean = statistics.fmean(samples)
    comparison.expect("result.step_time_s.median", stored.median, statistics.median(samples))
    comparison.expect("result.step_time_s.p5", stored.p5, twentieths[0])
    comparison.expect("result.step_time_s.p95", stored.p95, twentieths[-1])
    cv = statistics.stdev(samples) / mean if mean else "a mean that is not 0"
    comparison.expect("result.step_time_s.cv", stored.cv, cv)


def _compare_energy(
    record: RunRecord, headline: RepeatTiming, comparison: RecordComparison
) -> None:
    stored, start, stop = record.result.energy, headline.energy_start_j, headline.energy_stop_j
    if stored is None or start is None or stop is None or stop <= start:
        known = start is not None and stop is not None and stop > start
        must = "energy from the counters" if known else "None"
        shown = None if stored is None else stored.joules
        comparison.require("result.energy", shown, (stored is not None) == known, must)
        return
    tokens = _within(headline, record.workload.tokens_per_step)
    comparison.expect("result.energy.joules", stored.joules, stop - start)
    per_joule = stored.tokens_per_joule
    comparison.expect("result.energy.tokens_per_joule", per_joule, tokens / (stop - start))
