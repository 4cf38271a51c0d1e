"""Tokens/s of ``llmb run`` against the public gpt-bench loop, in turns.

gpt-bench (github.com/undertherain/gpt-bench) is not part of this repository: give the folder that
holds its ``bench`` package.

    python benchmarks/against_gpt_bench.py PATH/gpt-bench/single --batch-size 1 --rounds 2
    python benchmarks/against_gpt_bench.py PATH/gpt-bench/single --best 5 4 --layers 4
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from paired import alternate, report


def gpt_bench(folder: Path, batch_size: int, layers: int) -> float:
    """Return the tokens per second gpt-bench prints (its own 50 steps)."""
    command = [sys.executable, "-m", "bench", f"--batch-size={batch_size}"]
    command += ["--precision=BF16", "--device=cpu", f"--num-hidden-layers={layers}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = re.search(r"tokens per second ([\d.]+)", done.stdout)
    if not found:
        sys.exit(f"gpt-bench printed no result: {done.stderr[-500:]}")
    return float(found[1])


def llmb(batch_size: int, layers: int) -> float:
    """Return the headline of an ``llmb run`` of 50 steps."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", "--plugin", "cpu", "--precision", "BF16"]
        command += ["--batch-size", str(batch_size), "--num-hidden-layers", str(layers)]
        command += ["--json", "--quiet", "--output-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["result"]["tokens_per_second"])


def main() -> None:
    """Compare at one batch size for both, or at each side's own best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--best", type=int, nargs=2, metavar=("LLMB", "GPT_BENCH"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--layers", type=int, default=12, help="fewer are quicker, and not official"
    )
    arguments = parser.parse_args()
    ours, theirs = arguments.best or (arguments.batch_size, arguments.batch_size)
    folder, layers = arguments.folder, arguments.layers
    pairs = alternate(
        arguments.rounds, lambda: llmb(ours, layers), lambda: gpt_bench(folder, theirs, layers)
    )
    report(f"llmb, batch {ours}", f"gpt-bench, batch {theirs}", pairs)


if __name__ == "__main__":
    main()
