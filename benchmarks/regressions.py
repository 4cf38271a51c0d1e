"""How surely are steps found in histories of runs, and how often is a flat history accused?

    python benchmarks/regressions.py                    # the tables of RESULTS.md
    python benchmarks/regressions.py --histories 50     # a quarter of the time

Simulated: 200 histories of 60 runs for each step (2 %, 5 %) and noise (1 %, 3 %), and flat ones.
The step lies anywhere from run 15 to run 45. Noise is the standard deviation from run to run:

- normal;
- heavy: Student's t with 3 degrees of freedom, scaled;
- bursts: normal, and one run of ten is slower by an exponential of 4 times the noise (other load);
- AR 0.3, AR 0.6: neighbouring runs are correlated, as on a machine that warms up.

The gate (``llmb compare --baseline``) is given 10 runs and one more: on one machine, and on ten
machines whose speed differs by up to 20 %, with a ceiling that has 1 % of noise of its own.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmb.history.baseline import decide
from llmb.history.changes import change_points
from llmb.history.line import HistoryLine

RUNS, FIRST, LAST = 60, 15, 45
#: A change point this near to the step counts as the step.
NEAR = 3
STEPS, NOISES = (0.02, 0.05), (0.01, 0.03)
Noise = Callable[[np.random.Generator, int, float], npt.NDArray[np.float64]]


def normal(draw: np.random.Generator, count: int, sigma: float) -> npt.NDArray[np.float64]:
    return sigma * draw.standard_normal(count)


def heavy(draw: np.random.Generator, count: int, sigma: float) -> npt.NDArray[np.float64]:
    return sigma * draw.standard_t(3, count) / math.sqrt(3)


def bursts(draw: np.random.Generator, count: int, sigma: float) -> npt.NDArray[np.float64]:
    slower = (draw.random(count) < 0.1) * draw.exponential(4 * sigma, count)
    return normal(draw, count, sigma) - slower


def correlated(r: float) -> Noise:
    def of(draw: np.random.Generator, count: int, sigma: float) -> npt.NDArray[np.float64]:
        found = normal(draw, count, sigma)
        for n in range(1, count):
            found[n] = r * found[n - 1] + math.sqrt(1 - r * r) * found[n]
        return found

    return of


NOISE: dict[str, Noise] = {
    "normal": normal,
    "heavy": heavy,
    "bursts": bursts,
    "AR 0.3": correlated(0.3),
    "AR 0.6": correlated(0.6),
}


@dataclass(frozen=True)
class Found:
    """Steps that were found in some histories with one step each."""

    histories: int
    found: int
    #: Change points far from the step, in histories.
    elsewhere: int
    #: Runs from the step until it is found for the first time.
    delays: tuple[int, ...]


def stepped(noise: Noise, step: float, sigma: float, histories: int, seed: int) -> Found:
    """Return how often a fall by ``step`` is found, with a look after each further run."""
    draw = np.random.default_rng(seed)
    found = elsewhere = 0
    delays = []
    for _ in range(histories):
        at = int(draw.integers(FIRST, LAST))
        logs = noise(draw, RUNS, sigma)
        logs[at:] += math.log1p(-step)
        values = [float(value) for value in 1000 * np.exp(logs)]
        last = change_points(values)
        near = [point for point in last if abs(point.at - at) <= NEAR]
        found += bool(near)
        elsewhere += len(near) < len(last)
        if near:
            delays += [_delay(values, at)]
    return Found(histories, found, elsewhere, tuple(delays))


def _delay(values: Sequence[float], at: int) -> int:
    for end in range(at + 1, len(values)):
        if any(abs(point.at - at) <= NEAR for point in change_points(values[:end])):
            return end - at
    return len(values) - at


def flat(noise: Noise, sigma: float, histories: int, seed: int) -> tuple[int, int]:
    """Return the accused flat histories: at their end, and at any of 9 looks along their way."""
    draw = np.random.default_rng(seed)
    at_end = ever = 0
    for _ in range(histories):
        values = [float(value) for value in 1000 * np.exp(noise(draw, RUNS, sigma))]
        accused = bool(change_points(values))
        looks = range(20, RUNS, 5)
        at_end += accused
        ever += accused or any(change_points(values[:end]) for end in looks)
    return at_end, ever


def line(number: int, rate: float, ceiling: float, machine: str) -> HistoryLine:
    return HistoryLine(
        created_utc=f"2026-11-{1 + number // 24:02}T{number % 24:02}:00:00Z",
        run_id=f"{number:032x}",
        run=f"run-{number}",
        work="0" * 16,
        workload="llama-1.4b",
        mode="train",
        class_="official",
        preset=None,
        settings="batch 1, eager",
        precision="BF16",
        effective_precision="BF16",
        plugin="cpu",
        plugin_version="1",
        device=machine,
        cpu=machine,
        cores=4,
        world_size=1,
        commit=None,
        branch="main",
        tokens_per_second=rate,
        ci95=None,
        interval_values=1,
        ceilings_flops_per_second=(ceiling, ceiling),
        fraction_of_ceiling=rate / ceiling,
        load=0.1,
        verdict="CONSISTENT",
        rules_version="3",
        llmb_version="0",
        torch="0",
    )


def gate(noise: Noise, step: float, sigma: float, machines: bool, histories: int, seed: int) -> int:
    """Return how many further runs, slower by ``step``, the gate calls a regression."""
    draw = np.random.default_rng(seed)
    return sum(
        decide(run, "main", lines).outcome == "regression"
        for run, lines in _gated(noise, step, sigma, machines, histories, draw)
    )


def _gated(
    noise: Noise,
    step: float,
    sigma: float,
    machines: bool,
    histories: int,
    draw: np.random.Generator,
) -> Iterator[tuple[HistoryLine, list[HistoryLine]]]:
    for _ in range(histories):
        speeds = np.log(draw.uniform(0.8, 1.2, 11)) if machines else np.zeros(11)
        logs = noise(draw, 11, sigma) + speeds
        logs[-1] += math.log1p(-step)
        ceilings = speeds + 0.01 * draw.standard_normal(11)
        lines = [
            line(n, 1000 * math.exp(rate), 2000 * math.exp(top), f"m{n if machines else 0}")
            for n, (rate, top) in enumerate(zip(logs, ceilings, strict=True))
        ]
        yield lines[-1], lines[:-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=28)
    asked = parser.parse_args()
    count, seed = asked.histories, asked.seed
    print(f"{count} histories of {RUNS} runs each, seed {seed}\n")
    print("| noise | step | found | missed | also elsewhere | delay, median (90 %) in runs |")
    print("|---|---|---|---|---|---|")
    for kind in ("normal", "bursts"):
        for step in STEPS:
            for sigma in NOISES:
                one = stepped(NOISE[kind], step, sigma, count, seed)
                late = sorted(one.delays)
                delay = (
                    f"{statistics.median(late):.0f} ({late[int(0.9 * (len(late) - 1))]})"
                    if late
                    else "none found"
                )
                missed = count - one.found
                cells = (f"{kind}, {sigma:.0%}", f"{step:.0%}", one.found, missed, one.elsewhere)
                print(f"| {' | '.join(map(str, (*cells, delay)))} |", flush=True)
    print("\n| flat histories, noise 1 % | accused at the end | accused at any of 9 looks |")
    print("|---|---|---|")
    for kind, noise in NOISE.items():
        at_end, ever = flat(noise, 0.01, count, seed)
        print(f"| {kind} | {at_end} | {ever} |", flush=True)
    print("\n| gate: one run after 10, noise 1 % | no step | 2 % | 5 % | 10 % |")
    print("|---|---|---|---|---|")
    for kind, noise in NOISE.items():
        for machines in (False, True):
            where = "ten machines" if machines else "one machine"
            found = [
                gate(noise, step, 0.01, machines, count, seed) for step in (0.0, 0.02, 0.05, 0.1)
            ]
            print(f"| {kind}, {where} | {' | '.join(map(str, found))} |", flush=True)


if __name__ == "__main__":
    main()
