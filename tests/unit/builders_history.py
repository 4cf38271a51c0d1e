"""Lines of a history whose figures are given: what series, steps and decisions are held against."""

from __future__ import annotations

import random

from llmb.history.line import HistoryLine

CEILING = 2e12
_DEFAULTS = {
    "run": "a-run",
    "work": "0" * 16,
    "workload": "llama-1.4b",
    "mode": "train",
    "class_": "official",
    "preset": None,
    "settings": "batch 1, eager",
    "precision": "BF16",
    "effective_precision": "BF16",
    "plugin": "cpu",
    "plugin_version": "1",
    "device": "EPYC",
    "cpu": "EPYC",
    "cores": 4,
    "world_size": 1,
    "commit": None,
    "branch": "main",
    "ci95": None,
    "interval_values": 1,
    "load": 0.1,
    "verdict": "CONSISTENT",
    "rules_version": "3",
    "llmb_version": "0.2.0",
    "torch": "2.13",
}


def line(number=0, rate=1000.0, ceiling=CEILING, **changes):
    """Return run ``number`` with ``rate`` tokens/s, and the share of ``ceiling`` that follows."""
    ceilings = None if ceiling is None else (ceiling, ceiling)
    share = None if ceiling is None else rate * 1e9 / ceiling
    return HistoryLine(
        **{
            **_DEFAULTS,
            "created_utc": f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00Z",
            "run_id": f"{number:032x}",
            "tokens_per_second": rate,
            "ceilings_flops_per_second": ceilings,
            "fraction_of_ceiling": share,
            **changes,
        }
    )


def lines(rates, **changes):
    """Return a run for each of ``rates``, an hour apart."""
    return [line(number, rate, **changes) for number, rate in enumerate(rates)]


def noisy(count, *, seed=0, mean=1000.0, deviation=0.01):
    """Return ``count`` rates with independent normal noise."""
    draw = random.Random(seed)
    return [mean * (1 + deviation * draw.gauss(0, 1)) for _ in range(count)]
