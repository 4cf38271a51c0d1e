"""What ranks add, and what llmb costs beside a bare torchrun script: paired rounds, with spread.

    python benchmarks/ranks.py --only scaling --rounds 5
    python benchmarks/ranks.py --only overhead --rounds 5

Weak scaling: each rank takes the same batch, with one thread. A round runs everything once, one
after the other, so that a ratio is of neighbours in time. "Side by side" are runs of one rank that
know nothing of each other: what the machine's cores allow. A run counts by its median step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

LAYERS, HIDDEN, LENGTH, DTYPE = 4, 256, 256, "float32"
#: Ways to share among two ranks or more, as options of llmb run.
SHARED: dict[str, Callable[[int], tuple[str, ...]]] = {
    "DDP": lambda n: (f"--nproc={n}",),
    "FSDP2, stage 2": lambda n: (f"--nproc={n}", f"--dp-shard={n}", "--zero=2"),
    "FSDP2, stage 3": lambda n: (f"--nproc={n}", f"--dp-shard={n}"),
}


@dataclass(frozen=True)
class Work:
    """Sequences of a rank's batch, and timed steps; as many again come before them."""

    batch: int
    steps: int

    def of_llmb(self, *words: str) -> float:
        """Return the median seconds of a step of a run, with all that llmb does between two."""
        sizes = (
            f"--num-hidden-layers={LAYERS}",
            f"--hidden-size={HIDDEN}",
            f"--intermediate-size={2 * HIDDEN}",
            "--num-attention-heads=8",
            f"--sequence-length={LENGTH}",
            f"--batch-size={self.batch}",
            f"--timed-steps={self.steps}",
        )
        fixed = ("--plugin=cpu", "--precision=FP32", "--audit=off", "--quiet", "--json")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "llmb", "run", f"--output-dir={folder}", *fixed]
            record = json.loads(_said([*command, *sizes, *words]))
        stamps: list[int] = record["timing"]["step_ns"][-self.steps - 1 :]
        return statistics.median(after - before for before, after in pairwise(stamps)) / 1e9

    def side_by_side(self, runs: int) -> float:
        """Return the slowest median step of ``runs`` runs at a time that share nothing."""
        with ThreadPoolExecutor(runs) as pool:
            return max(pool.map(lambda _: self.of_llmb(), range(runs)))

    def of_script(self, ranks: int) -> float:
        """Return the median seconds of a step of the bare script."""
        script = str(Path(__file__).with_name("bare_ddp.py"))
        words = [str(n) for n in (LAYERS, HIDDEN, LENGTH, self.batch, self.steps)]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        return float(_said([*launch, f"--nproc-per-node={ranks}", script, *words, DTYPE]))


def _said(command: list[str]) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def show(name: str, ratios: list[float]) -> None:
    """Print the median of ``ratios`` and their spread."""
    low, high = min(ratios), max(ratios)
    print(f"{name}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)


def tell(name: str, ratios: list[float]) -> None:
    """Say what the last round found: all of them take minutes."""
    print(f"round {len(ratios)}: {name}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)


def scaling(work: Work, rounds: int, counts: list[int]) -> None:
    """Print how many times the tokens of one rank several make."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        alone = work.of_llmb()
        for ranks in counts:
            took = {"side by side": work.side_by_side(ranks)}
            took |= {name: work.of_llmb(*words(ranks)) for name, words in SHARED.items()}
            for name, seconds in took.items():
                label = f"{name}, {ranks}, times one"
                found.setdefault(label, []).append(ranks * alone / seconds)
                tell(label, found[label])
    for name, ratios in found.items():
        show(name, ratios)


def overhead(work: Work, rounds: int) -> None:
    """Print how much longer a step of llmb takes than one of the bare script."""
    ratios: list[float] = []
    label = "a step of llmb over one of the bare script, DDP, 2 ranks"
    for _ in range(rounds):
        ratios.append(work.of_llmb("--nproc=2") / work.of_script(2))
        tell(label, ratios)
    show(label, ratios)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["scaling", "overhead"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a run")
    asked = parser.parse_args()
    work = Work(asked.batch, asked.steps)
    if asked.only != "overhead":
        scaling(work, asked.rounds, asked.ranks)
    if asked.only != "scaling":
        overhead(work, asked.rounds)


if __name__ == "__main__":
    main()
