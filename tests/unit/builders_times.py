"""Records whose step times are given: what a comparison of two runs is held against."""

from __future__ import annotations

import random
from functools import cache
from itertools import accumulate

from llmb.measure import statistics
from llmb.records.run_record import RepeatTiming
from tests.builders import TOKENS_PER_STEP, edited, make_record
from tests.unit import builders_workloads

WARMUP = 2


@cache
def template():
    """Return the record that everything but the times is taken from."""
    return make_record(1)


def noise(count, *, seed, mean=0.1, deviation=0.02, correlation=0.0):
    """Return ``count`` step times in seconds whose neighbours correlate as given (AR(1))."""
    draw, now, found = random.Random(seed), 0.0, []
    for _ in range(count):
        now = correlation * now + (1 - correlation**2) ** 0.5 * draw.gauss(0, 1)
        found.append(mean * (1 + deviation * now))
    return found


def record_of(*processes, clock="host", every=10, tokens=TOKENS_PER_STEP, edit=None):
    """Return a record with a repeat for each of ``processes``: seconds of its timed steps.

    ``edit`` changes the JSON data last.
    """
    repeats = [_repeat(times, clock, every) for times in processes]
    rates = [statistics.tokens_per_second(repeat, tokens) for repeat in repeats]
    headline = statistics.median_index(rates)

    def change(data):
        dumped = [repeat.model_dump(mode="json") for repeat in repeats]
        data["timing"] |= dumped[headline] | {"headline_repeat": headline, "repeats": dumped}
        data["workload"]["tokens_per_step"] = tokens
        data["config"] |= {"repeats": len(repeats), "batch_size": max(1, tokens // 256)}
        data["result"] |= {"tokens_per_second": rates[headline], "metrics": []}
        if edit is not None:
            edit(data)

    return edited(template(), change)


def of_workload(*args, **kwargs):
    """Return ``builders_workloads``' record with the headline that its stamps give."""
    record = builders_workloads.of_workload(*args, **kwargs)
    rate = statistics.tokens_per_second(record.timing, record.workload.tokens_per_step)
    return edited(record, lambda data: data["result"].update(tokens_per_second=rate))


def _repeat(times, clock, every):
    stamps = [round(1e9 * at) for at in accumulate([1.0, 0.1, *times])]
    steps = len(times)
    fence_steps = [*range(WARMUP, WARMUP + steps, every), WARMUP + steps]
    fences = [stamps[k - 1] for k in fence_steps]
    return RepeatTiming(
        warmup_steps=WARMUP,
        timed_steps=steps,
        start_ns=fences[0],
        stop_ns=fences[-1],
        fence_ns=tuple(fences),
        fence_worker_ns=tuple(fences),
        fence_steps=tuple(fence_steps),
        step_ns=tuple(stamps),
        step_clock=clock,
        starved_steps=0,
        loss_first=11.0,
        loss_last=10.0,
        peak_memory_bytes=20_000_000_000,
        energy_start_j=1000.0,
        energy_stop_j=3000.0,
        cpu_s=5.0,
    )
