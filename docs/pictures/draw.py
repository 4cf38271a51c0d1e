"""Draw the pictures of docs/how-the-audit-works.md from two real runs: an honest one and a cheat.

    llmb demo --output-dir llmb-demo
    python docs/pictures/draw.py llmb-demo/runs/*-cpu llmb-demo/runs/*-cheat

writes parts.svg (rule E2, part by part) and window.svg (the steps of the honest run) beside itself.
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import matplotlib as mpl

from llmb.audit import one_part
from llmb.audit.bench import Bench, facts_of
from llmb.records.bundle import read_record

HERE = Path(__file__).parent
HONEST, CHEAT, LIMIT = "#0072b2", "#d55e00", "#555555"


def margins(directory: Path) -> dict[str, float]:
    """Return, for each part of a run, its bits above the limit of rule E2; below: negative."""

    def file(name: str) -> bytes | None:
        path = directory / name
        return path.read_bytes() if path.is_file() else None

    found = one_part.parts("E2", Bench(file, facts_of(read_record(directory), (), {}), 0))
    return {
        each.part.removeprefix("model.").removesuffix(".weight"): first_number(each.measured)
        - first_number(each.limit)
        for each in found
    }


def first_number(text: str) -> float:
    """Return the first number in a text. Example: 4.08 for "4.08 bits"."""
    found = re.search(r"-?\d+(\.\d+)?", text)
    if found is None:
        raise SystemExit(f"no number in {text!r}")
    return float(found.group())


def draw_parts(honest: Path, cheat: Path) -> None:
    """Draw a row for each part: how far both runs are from the limit."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
    of_cheat = margins(cheat)
    names = sorted(of_cheat, key=lambda name: of_cheat[name], reverse=True)
    for path, colour, label in (
        (honest, HONEST, "honest run in BF16"),
        (cheat, CHEAT, "cheat: weights rounded to FP8"),
    ):
        values = margins(path)
        axes.scatter([values[name] for name in names], names, s=22, color=colour, label=label)
    axes.axvline(0, color=LIMIT, linewidth=1)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.set_xlabel("bits above the limit of rule E2 (left of 0: the rule is broken)")
    axes.legend(loc="lower left", frameon=False, fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(HERE / "parts.svg", metadata={"Date": None})


def draw_window(honest: Path) -> None:
    """Draw each step of the honest run as a bar: its time, and the fences around the window."""
    from matplotlib import pyplot as plt

    timing = read_record(honest).timing.repeats[0]
    ends = [(each - timing.step_ns[0]) / 1e9 for each in timing.step_ns]
    figure, axes = plt.subplots(figsize=(7.2, 1.9), layout="constrained")
    first, last = timing.warmup_steps, timing.warmup_steps + timing.timed_steps
    for number, (begin, end) in enumerate(itertools.pairwise(ends), start=1):
        timed = first <= number < last
        axes.barh(0, end - begin, left=begin, color=HONEST if timed else "#bbbbbb", edgecolor="w")
    for stamp, steps in zip(timing.fence_ns, timing.fence_steps, strict=True):
        at = (stamp - timing.step_ns[0]) / 1e9
        name = {first: "START", last: "STOP"}.get(steps, "fence")
        axes.axvline(at, color=LIMIT, linewidth=1)
        axes.annotate(f"{name}\nafter step {steps}", (at, 0.5), ha="center", fontsize=8)
    axes.set_ylim(-0.45, 0.95)
    axes.set_yticks([])
    axes.set_xlabel("seconds since the first step")
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(HERE / "window.svg", metadata={"Date": None})


def main(arguments: list[str]) -> None:
    """Draw both pictures."""
    if len(arguments) != 2:
        raise SystemExit(__doc__)
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "llmb", "svg.fonttype": "none", "font.family": "sans-serif"}
    honest, cheat = map(Path, arguments)
    draw_parts(honest, cheat)
    draw_window(honest)


if __name__ == "__main__":
    main(sys.argv[1:])
