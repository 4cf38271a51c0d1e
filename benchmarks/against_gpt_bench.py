"""Tokens/s of ``llmb run`` against the public gpt-bench loop, in turns.

gpt-bench (github.com/undertherain/gpt-bench) is not part of this repository: give the folder that
holds its ``bench`` package. Options after the folder that are not named here go to both programs,
which call a shape's sizes by the same names.

    python benchmarks/against_gpt_bench.py PATH/gpt-bench/single --batch-size 1 --rounds 2
    python benchmarks/against_gpt_bench.py PATH/gpt-bench/single --best 5 4 --num-hidden-layers=4
    python benchmarks/against_gpt_bench.py PATH/gpt-bench/single --precision FP32 \
        --hidden-size=800 --intermediate-size=1600 --num-attention-heads=8
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paired import alternate, report


def gpt_bench(folder: Path, options: Sequence[str]) -> float:
    """Return the tokens per second gpt-bench prints (its own 50 steps)."""
    command = [sys.executable, "-m", "bench", "--device=cpu", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"tokens per second ([\d.]+)", done.stdout)
    if not found:
        sys.exit(f"gpt-bench printed no result: {done.stderr[-500:]}")
    return float(found[1])


def llmb(options: Sequence[str]) -> float:
    """Return the headline of an ``llmb run`` of 50 steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", "--workload=llama-1.4b", "--plugin=cpu"]
        command += [*options, "--json", "--quiet", "--output-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"llmb run failed: {done.stderr[-500:]}")
    return float(json.loads(done.stdout)["result"]["tokens_per_second"])


def main() -> None:
    """Compare at one batch size for both, or at each side's own best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--best", type=int, nargs=2, metavar=("LLMB", "GPT_BENCH"))
    parser.add_argument("--precision", default="BF16")
    parser.add_argument("--rounds", type=int, default=2)
    arguments, shape = parser.parse_known_args()
    ours, theirs = arguments.best or (arguments.batch_size, arguments.batch_size)
    options = [f"--precision={arguments.precision}", *shape]
    pairs = alternate(
        arguments.rounds,
        lambda: llmb([*options, f"--batch-size={ours}"]),
        lambda: gpt_bench(arguments.folder, [*options, f"--batch-size={theirs}"]),
    )
    report(f"llmb, batch {ours}", f"gpt-bench, batch {theirs}", pairs)


if __name__ == "__main__":
    main()
