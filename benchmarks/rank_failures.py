"""How long from a rank's end to the message that names it, and until nothing of the run is left.

python benchmarks/rank_failures.py --rounds 3 --rank-timeout 8

Two gloo ranks of a tiny model; rank 1 is killed, raises, or hangs in its fifth forward pass. It
writes down when, on the clock that all processes of the machine share.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

FATES = {
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "raises": 'raise ValueError("no more")',
    "hangs": "time.sleep(3600)",
}
PLUGIN = """
import os, pathlib, signal, time
from torch import nn
from llmb.config import FP32
from llmb.plugin import hookimpl

@hookimpl
def llmb_precisions():
    return [FP32.model_copy(update={{"native": False}})]  # no ceiling is measured

class Failing(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, 0
    def forward(self, ids, labels=None):
        self.calls += 1
        if self.calls == 5 and os.environ["RANK"] == "1":
            pathlib.Path(os.environ["STAMP"]).write_text(str(time.monotonic_ns()))
            {fate}
        return self.inner(ids, labels=labels)

@hookimpl
def llmb_post_process_model(model, config):
    return Failing(model)
"""
FLAGS = (
    *("--plugin=failing", "--device=cpu", "--precision=FP32", "--audit=off", "--nproc=2"),
    *("--hidden-size=64", "--intermediate-size=128", "--num-hidden-layers=2"),
    *("--num-attention-heads=4", "--sequence-length=16", "--batch-size=1", "--timed-steps=20"),
    "--quiet",
)


def install(folder: Path, fate: str) -> None:
    """Write a plugin, as pip would, whose rank 1 meets ``fate``."""
    (folder / "failing.py").write_text(PLUGIN.format(fate=fate))
    info = folder / "failing-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[llmb]\nfailing = failing\n")


def measure(fate: str, rank_timeout: float) -> dict[str, float | str]:
    """Return seconds from the end of rank 1 to the first message, and to the end of all."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        install(folder, FATES[fate])
        paths = [text, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "STAMP": f"{text}/stamp"}
        command = [sys.executable, "-m", "llmb", "run", *FLAGS, f"--rank-timeout={rank_timeout}"]
        process = subprocess.Popen(
            [*command, f"--output-dir={text}/runs"],
            env=env,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        said: list[tuple[int, str]] = []

        def listen() -> None:
            assert process.stderr is not None
            said.extend((time.monotonic_ns(), line) for line in process.stderr)

        listener = threading.Thread(target=listen)
        listener.start()
        code = process.wait()
        ended = time.monotonic_ns()
        listener.join()
        at = int((folder / "stamp").read_text())
    named = next((when, line) for when, line in said if line.startswith("llmb: "))
    if code != 4 or "rank 1" not in named[1]:
        raise SystemExit(f"{fate}: exit code {code}, and the first message is {named[1]}")
    return {
        "fate": fate,
        "named_s": (named[0] - at) / 1e9,
        "ended_s": (ended - at) / 1e9,
        "message": named[1].strip().removeprefix("llmb: ").partition(" (")[0],
    }


def main() -> None:
    """Measure each fate in turn and print median and range."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-timeout", type=float, default=8.0)
    parser.add_argument("--json", action="store_true", help="print every measurement as JSON")
    asked = parser.parse_args()
    found = [measure(fate, asked.rank_timeout) for _ in range(asked.rounds) for fate in FATES]
    if asked.json:
        print(json.dumps({"rank_timeout_s": asked.rank_timeout, "measured": found}, indent=1))
        return
    print(f"{'rank 1':<8} {'named after, s':>24} {'all ended after, s':>24}  message")
    for fate in FATES:
        mine = [one for one in found if one["fate"] == fate]
        cells = [spread([float(one[key]) for one in mine]) for key in ("named_s", "ended_s")]
        print(f"{fate:<8} {cells[0]:>24} {cells[1]:>24}  {mine[0]['message']}")


def spread(values: list[float]) -> str:
    """Return median and range of ``values``."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
