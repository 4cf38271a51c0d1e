"""Plugins of the corpus at the true width on one GPU: which rules see each of them, and how far.

    python corpus.py OUTPUT [--plugins softmax_expanded,copies_frozen] [--at-once 2] [FLAGS...]

Each run is llama-1.4b whole, ten timed steps of four sequences, full audit; FLAGS are of
``llmb run``. OUTPUT gets one JSON line a run, each as soon as it is there, and the records.
Needs ``tests/cheats`` beside ``llmb``, and nothing that ``llmb-cuda`` does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.cheats import runner  # noqa: E402

#: Honest ones first: what accuses them is worse than what a cheat escapes.
PLUGINS = "honest_eager,honest_explicit_attention,softmax_expanded,copies_frozen,fp8_one_matrix"
FLAGS = ("--batch-size=4", "--timed-steps=10", "--audit=full", "--precision=BF16")
#: Seconds after which a run is given up.
PATIENCE_S = 200


def one(output: Path, plugin: str, flags: list[str], threads: int) -> dict:
    """Run ``plugin``; return its verdict, and what each rule has measured of how much allowed."""
    began = time.time()
    folder = output / plugin
    vendor = "llmb_cuda.plugin"
    package = runner.install(folder / "plugins", plugin, native=True, vendor=vendor)
    paths = (str(package), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"OMP_NUM_THREADS": str(threads), "LLMB_LOAD_PLUGINS": runner.NAME}
    command = [sys.executable, "-m", "llmb", "run", "--plugin", runner.NAME, *FLAGS, *flags]
    command += ["--output-dir", str(folder / "runs"), "--quiet"]
    with (folder / "log.txt").open("w") as log:
        try:
            code = subprocess.call(
                command, stdout=log, stderr=log, timeout=PATIENCE_S, env=environment
            )
        except subprocess.TimeoutExpired:
            code = 124
    row = {"plugin": plugin, "flags": flags, "code": code, "seconds": round(time.time() - began, 1)}
    for record in folder.glob("runs/*/record.json"):
        found = json.loads(record.read_bytes())
        runner.keep(output, plugin, found)
        row |= {"verdict": found["audit"]["verdict"], "findings": told(found["audit"]["findings"])}
    if "verdict" not in row:
        row["log"] = (folder / "log.txt").read_text(errors="replace").splitlines()[-20:]
    return row


def told(findings: list[dict]) -> dict[str, dict]:
    """Return of each finding its status, its message and its figures."""
    keys = ("status", "message", "measured", "honest")
    return {each["id"]: {key: each[key] for key in keys if each[key]} for each in findings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--plugins", default=PLUGINS)
    parser.add_argument("--at-once", type=int, default=2)
    options, flags = parser.parse_known_args()
    options.output.mkdir(parents=True, exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // options.at_once)
    with (
        ThreadPoolExecutor(options.at_once) as pool,
        (options.output / "runs.jsonl").open("a") as file,
    ):
        names = options.plugins.split(",")
        runs = [pool.submit(one, options.output, name, flags, threads) for name in names]
        for run in as_completed(runs):
            row = run.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            seen = [
                rule
                for rule, each in row.get("findings", {}).items()
                if each["status"] in ("fail", "flag")
            ]
            print(
                row["plugin"],
                row.get("verdict", row.get("log")),
                seen,
                f"{row['seconds']} s",
                flush=True,
            )
            for rule in ("E1", "L1", *seen):
                print("   ", rule, row.get("findings", {}).get(rule), flush=True)


if __name__ == "__main__":
    main()
