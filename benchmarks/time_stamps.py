r"""What time stamps cost a window, and how near the bound by a foreign clock comes to the figure.

Runs with and without stamps in turns, of a real authority (openssl) on the loopback address that
answers after `--delay` seconds, as one far away does. Each line: bound over the run's own figure.

    python benchmarks/time_stamps.py --rounds 20 -- --workload llama-45m --precision FP32 \
        --timed-steps 20 --audit off
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paired import alternate, report, spread

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests import authority

RUN = [sys.executable, "-m", "llmb", "run", "--quiet", "--json"]


def run(folder: Path, flags: list[str], *more: str) -> dict[str, Any]:
    """Return the record of a run."""
    command = [*RUN, *flags, *more, "--output-dir", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--delay", type=float, default=0.3, help="seconds before each answer")
    parser.add_argument("flags", nargs="*", help="of llmb run, after --")
    given = parser.parse_args()
    shares, first = [], []
    with (
        tempfile.TemporaryDirectory() as name,
        authority.serving(authority.made(Path(name) / "keys")) as clock,
    ):
        clock.delay_s = given.delay

        def stamped() -> float:
            record = run(Path(name) / "runs", given.flags, f"--timestamp={clock.url}")
            own, said = record["result"]["tokens_per_second"], record["timing"]["time_stamps"]
            shares.append(said["tokens_per_second"] / own)
            first.append(float(said["mixed_from"] - record["timing"]["warmup_steps"]))
            window = (record["timing"]["stop_ns"] - record["timing"]["start_ns"]) / 1e9
            print(
                f"{own:10.2f} tokens/s, window {window:6.2f} s, bound {shares[-1]:.4f}", flush=True
            )
            return float(own)

        def plain() -> float:
            found = run(Path(name) / "runs", given.flags)["result"]["tokens_per_second"]
            return float(found)

        report("stamped, tokens/s", "plain, tokens/s", alternate(given.rounds, stamped, plain))
    print(f"bound / figure: {spread(shares).show(4)}")
    print(f"steps before the token was mixed in: {spread(first).show(0)}")


if __name__ == "__main__":
    main()
