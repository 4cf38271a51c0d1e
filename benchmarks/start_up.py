"""How long a user waits: for help, for the first step, for a complete debug run.

python benchmarks/start_up.py --rounds 5
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time


def seconds(arguments: list[str]) -> float:
    """Return how long ``llmb`` with ``arguments`` takes as a whole process."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "llmb", *arguments], capture_output=True, check=True)
    return time.perf_counter() - begin


def seconds_to_first_step() -> float:
    """Return the time from ``llmb run`` to the end of its first warm-up step, then stop it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", "--output-dir", folder]
        begin = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        for line in process.stderr:
            if "first step done" in line:
                break
        elapsed = time.perf_counter() - begin
        process.terminate()
        process.wait()
    return elapsed


def main() -> None:
    """Measure each and print median and range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        debug = ["run", "--preset", "debug", "--quiet", "--output-dir", folder]
        measured = {
            "llmb --help": [seconds(["--help"]) for _ in range(rounds)],
            "llmb run --preset debug": [seconds(debug) for _ in range(rounds)],
        }
    measured["llmb run: first warm-up step"] = [seconds_to_first_step() for _ in range(rounds)]
    for name, values in measured.items():
        middle = statistics.median(values)
        print(f"{name:<30} {middle:7.2f} s  ({min(values):.2f} to {max(values):.2f}, n={rounds})")


if __name__ == "__main__":
    main()
