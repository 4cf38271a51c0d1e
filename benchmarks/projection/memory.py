"""Holds simulated peaks of memory against those of real runs on this machine's processor.

    python -m benchmarks.projection.memory [--json FILE]

A run's peak is its process's resident memory; that of a run of next to nothing is taken from it, so
that what is left is the model's. Each run is a debug run without audit, in BF16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from llmb.config import Parallelism
from llmb.simulation.rank import simulate
from llmb.workloads import find


@dataclass(frozen=True)
class Case:
    """A run: workload, its changed sizes, sequences of a micro-batch, and its ranks."""

    workload: str
    sizes: dict[str, int]
    micro_batch: int = 1
    mesh: dict[str, int] = field(default_factory=dict)
    sac_freq: str | None = None

    @property
    def name(self) -> str:
        """What tells it from the others."""
        parts = [self.workload, f"micro batch {self.micro_batch}"]
        parts += [f"{key} {value}" for key, value in self.sizes.items()]
        parts += [f"{key} {value}" for key, value in self.mesh.items()]
        return ", ".join([*parts, *([f"sac {self.sac_freq}"] if self.sac_freq else [])])


NOTHING = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "sequence_length": 16,
}
_WIDE = {"hidden_size": 1600, "intermediate_size": 3200, "num_hidden_layers": 12}
CASES = (
    Case("llama-1.4b", {"num_hidden_layers": 3}),
    Case("llama-1.4b", {"num_hidden_layers": 6}),
    Case("llama-1.4b", {"num_hidden_layers": 3, "sequence_length": 512}, 4),
    Case("llama-1.4b", {"num_hidden_layers": 3, "sequence_length": 512}, 4, sac_freq="1/1"),
    Case("llama-1.4b", _WIDE, 2),
    Case("gpt2-125m", {}, 1),
    Case("gpt2-125m", {}, 4),
    Case("nemo-bert-base", {}, 2),
    Case("llama-1.4b", {"num_hidden_layers": 3}, 1, {"dp_shard": 2}),
    Case("llama-1.4b", _WIDE, 2, {"dp_shard": 2}),
    Case("llama-1.4b", {"num_hidden_layers": 3}, 1, {"tp": 2}),
)


def measured(case: Case) -> int:
    """Return the peak of a run of ``case``, of the rank that needs most."""
    ranks = 1
    for count in case.mesh.values():
        ranks *= count
    words = [f"--{k.replace('_', '-')}={v}" for k, v in {**case.sizes, **case.mesh}.items()]
    words += [f"--nproc={ranks}"] if ranks > 1 else []
    words += [f"--sac-freq={case.sac_freq}"] if case.sac_freq else []
    words += ["--no-mixed-precision"] if case.workload != "llama-1.4b" else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", "--quiet", "--json", "--audit=off"]
        command += [f"--workload={case.workload}", "--plugin=cpu", "--precision=BF16"]
        command += [f"--batch-size={case.micro_batch}", "--timed-steps=20", *words]
        done = subprocess.run(
            [*command, f"--output-dir={folder}"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    every = json.loads(done.stdout)["topology"]["ranks"]
    return max(rank["peak_memory_bytes"] for rank in every)


def simulated(case: Case) -> int:
    """Return the peak that the simulation says."""
    workload = find(case.workload, case.sizes)
    found = simulate(
        workload,
        Parallelism(**case.mesh),
        0,
        micro_batch=case.micro_batch,
        sac_freq=case.sac_freq,
    )
    return found.peak_bytes


def main() -> None:
    """Print both peaks of every case, and how far they are apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="leave everything in a file")
    asked = parser.parse_args()
    nothing = Case("llama-1.4b", NOTHING)
    base = measured(nothing) - simulated(nothing)
    print(f"without a model: {base / 1e9:.3f} GB")
    rows = []
    for case in CASES:
        real, said = measured(case) - base, simulated(case)
        rows.append({"case": case.name, "measured": real, "simulated": said})
        off = 100 * (said / real - 1)
        print(f"{case.name}: {said / 1e9:.3f} GB for {real / 1e9:.3f} ({off:+.1f} %)", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"base": base, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
