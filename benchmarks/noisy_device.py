"""Many honest runs on a device that adds noise: how many does the audit accuse?

The device is the fake one of the tests (``python tests/plugins/fakedev/install.py SITE``), which
draws the order of summation of every product anew (``FAKEDEV_DEFECTS=noisy``), as kernels with
atomic additions do. Shapes, formats, batch sizes, workloads and seeds are drawn, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

OTHERS = ("gpt2-125m", "nemo-bert-base")


def drawn(draw: random.Random) -> list[str]:
    """Return the flags of one run."""
    seed = draw.getrandbits(32)
    flags = [f"--precision={draw.choice(('BF16', 'BF16', 'FP32', 'FP16'))}", f"--seed={seed}"]
    if draw.random() < 0.1:
        flags[0] = "--precision=FP32"  # theirs is autocast, which the fake device does not know
        return [*flags, f"--workload={draw.choice(OTHERS)}", "--preset=debug"]
    sizes = {
        "hidden-size": draw.choice((32, 64, 96)),
        "intermediate-size": draw.choice((64, 128, 192)),
        "num-hidden-layers": draw.choice((1, 2)),
        "num-attention-heads": draw.choice((2, 4)),
        "sequence-length": draw.choice((8, 16, 32)),
        "batch-size": draw.choice((1, 2, 3)),
        "timed-steps": 20,
    }
    return [*flags, *(f"--{name}={size}" for name, size in sizes.items())]


def verdict_of(flags: list[str], site: Path) -> tuple[str, str]:
    """Return the verdict of a run with ``flags``, and what was found against it."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, "FAKEDEV_DEFECTS": "noisy", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="llmb-noisy-") as folder:
        command = [
            sys.executable,
            "-m",
            "llmb",
            "run",
            "--quiet",
            "--plugin=generic",
            "--audit=full",
            *flags,
        ]
        command += ["--output-dir", folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        records = list(Path(folder).glob("*/record.json"))
        if not records:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            return f"code {done.returncode}", said
        audit = json.loads(records[0].read_bytes())["audit"]
    against = [f for f in audit["findings"] if f["status"] in ("fail", "flag")]
    return audit["verdict"], "; ".join(f"{f['id']} {f['status']}: {f['message']}" for f in against)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site", type=Path, help="the folder that the fake device is installed in")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    given = parser.parse_args()
    print(f"drawn from seed {given.seed}", flush=True)
    draw = random.Random(given.seed)
    every = [drawn(draw) for _ in range(given.runs)]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(given.at_once) as pool:
        verdicts = pool.map(lambda flags: verdict_of(flags, given.site.resolve()), every)
        for number, (flags, (verdict, why)) in enumerate(zip(every, verdicts, strict=True), 1):
            counts[verdict] += 1
            print(f"{number:3d} {verdict:<11} {' '.join(flags)} {why}".rstrip(), flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()))
    raise SystemExit(counts["INVALID"] > 0)


if __name__ == "__main__":
    main()
