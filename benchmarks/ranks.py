"""What ranks add, and what llmb costs beside a bare torchrun script: paired rounds, with spread.

    python benchmarks/ranks.py --only scaling --rounds 5
    python benchmarks/ranks.py --only overhead --rounds 5

Weak scaling: each rank takes the same batch, with one thread. A round runs everything once, one
after the other, so that a ratio is of neighbours in time.
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
from pathlib import Path

LAYERS, HIDDEN, LENGTH, BATCH, STEPS, DTYPE = 4, 512, 256, 2, 40, "float32"
#: Ways to share among two ranks or more, as options of llmb run.
SHARED: dict[str, Callable[[int], tuple[str, ...]]] = {
    "DDP": lambda n: (f"--nproc={n}",),
    "FSDP2, stage 2": lambda n: (f"--nproc={n}", f"--dp-shard={n}", "--zero=2"),
    "FSDP2, stage 3": lambda n: (f"--nproc={n}", f"--dp-shard={n}"),
}


def of_llmb(*words: str) -> float:
    """Return the mean seconds of a step of a run."""
    sizes = (
        f"--num-hidden-layers={LAYERS}",
        f"--hidden-size={HIDDEN}",
        f"--intermediate-size={2 * HIDDEN}",
        "--num-attention-heads=8",
        f"--sequence-length={LENGTH}",
        f"--batch-size={BATCH}",
        f"--timed-steps={STEPS // 2}",
    )
    fixed = ("--plugin=cpu", "--precision=FP32", "--audit=off", "--quiet", "--json")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", f"--output-dir={folder}", *fixed, *sizes]
        record = json.loads(_said([*command, *words]))
    timing = record["timing"]
    return (timing["stop_ns"] - timing["start_ns"]) / 1e9 / timing["timed_steps"]


def of_script(ranks: int) -> float:
    """Return the mean seconds of a step of the bare script."""
    script = str(Path(__file__).with_name("bare_ddp.py"))
    words = [str(n) for n in (LAYERS, HIDDEN, LENGTH, BATCH, STEPS)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return float(_said([*launch, f"--nproc-per-node={ranks}", script, *words, DTYPE]))


def _said(command: list[str]) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def show(name: str, ratios: list[float]) -> None:
    """Print the median of ``ratios`` and their spread."""
    low, high = min(ratios), max(ratios)
    print(f"{name}: {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})", flush=True)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["scaling", "overhead"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    asked = parser.parse_args()
    if asked.only != "overhead":
        found: dict[str, list[float]] = {}
        for _ in range(asked.rounds):
            alone = of_llmb()
            for name, words in SHARED.items():
                for ranks in asked.ranks:
                    ratio = ranks * alone / of_llmb(*words(ranks))
                    found.setdefault(f"{name}, {ranks} ranks, times one", []).append(ratio)
        for name, ratios in found.items():
            show(name, ratios)
    if asked.only != "scaling":
        ratios = [of_llmb("--nproc=2") / of_script(2) for _ in range(asked.rounds)]
        show("a step of llmb over one of the bare script, DDP, 2 ranks", ratios)


if __name__ == "__main__":
    main()
