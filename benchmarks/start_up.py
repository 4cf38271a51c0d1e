"""How long a user waits, and what it costs: wall and CPU seconds of whole commands.

CPU seconds are those of the command and all processes it has waited for, counted from outside.
``--against`` names another checkout, which takes turns with this one.

python benchmarks/start_up.py --rounds 5
git worktree add ../before COMMIT; python benchmarks/start_up.py --against ../before --threads 1
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paired import ratios, spread, take_turns

HERE = Path(__file__).resolve().parent.parent
DEBUG = ["run", "--preset", "debug", "--quiet"]
#: The run of the tests: the smallest that is audited.
TINY = [
    *("run", "--quiet", "--plugin", "cpu", "--precision", "FP32", "--batch-size", "1"),
    *("--hidden-size", "64", "--intermediate-size", "128", "--num-hidden-layers", "2"),
    *("--num-attention-heads", "4", "--sequence-length", "16", "--timed-steps", "20"),
]


@dataclass(frozen=True)
class Cost:
    """What one command took, in seconds."""

    wall: float
    cpu: float


def cost(command: list[str], tree: Path = HERE) -> Cost:
    """Return what ``command`` takes with the llmb of ``tree``."""
    with tempfile.TemporaryDirectory() as folder:
        into = ["--output-dir", folder] if "run" in command else []
        before, began = _cpu_s(), time.perf_counter()
        subprocess.run(
            [*command, *into],
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=folder,
            capture_output=True,
            check=True,
        )
        return Cost(time.perf_counter() - began, _cpu_s() - before)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def show(name: str, sides: dict[str, list[Cost]]) -> None:
    """Print the spread of each side, and of their ratio where there are two."""
    for side, costs in sides.items():
        wall, cpu = (spread([getattr(c, what) for c in costs]) for what in ("wall", "cpu"))
        print(f"{name:<24} {side:<7} {wall.show(2):>24} s  {cpu.show(2):>24} CPU s")
    if len(sides) > 1:
        one, other = sides.values()
        for what in ("wall", "cpu"):
            ratio = ratios(*([getattr(c, what) for c in costs] for costs in (one, other)))
            print(f"{'':<24} {what} seconds, {' / '.join(sides)}: {ratio.show(2)}")


def main() -> None:
    """Measure help, a debug run and the smallest audited run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of the runs")
    parser.add_argument("--against", type=Path, help="another checkout of llmb")
    given = parser.parse_args()
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    trees = {"here": HERE} | ({"before": given.against.resolve()} if given.against else {})
    llmb = [sys.executable, "-m", "llmb"]
    click = [sys.executable, "-c", "import click"]
    help_and_click: dict[str, Callable[[], Cost]] = {
        "help": lambda: cost([*llmb, "--help"]),
        "click": lambda: cost(click),
    }
    show("llmb --help", take_turns(max(given.rounds, 15), help_and_click))
    for name, arguments in (("debug preset", DEBUG), ("tiny audited run", TINY)):
        sides = {
            side: lambda tree=tree, arguments=arguments: cost([*llmb, *arguments], tree)
            for side, tree in trees.items()
        }
        show(name, take_turns(given.rounds, sides))


if __name__ == "__main__":
    main()
