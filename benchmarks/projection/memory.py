"""Holds counted and simulated peaks of memory against real runs on this machine's processor.

    python -m benchmarks.projection.memory [--only TEXT] [--keep] [--json FILE]

A run's peak is its process's resident memory, of the rank that needs most; that of a run of next to
nothing on as many ranks is taken from it, so that what is left is the model's. Each run is a debug
run without audit, in BF16, with torch's attention, whose allocator gives back at once what is freed
(glibc's threshold of 64 KiB); with --keep it keeps that, as runs on a processor do.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from llmb.config import Parallelism, ShapeName
from llmb.simulation.rank import simulate
from llmb.workloads import find
from llmb.workloads.checkpointing import OP, recomputed_blocks
from llmb.workloads.memory import MIXED, MemoryJob, StorageRecipe, own, peak_memory


@dataclass(frozen=True)
class Case:
    """A run: workload, its changed sizes, sequences of a micro-batch, and its ranks."""

    workload: str
    sizes: dict[ShapeName, int]
    micro_batch: int = 1
    mesh: dict[str, int] = field(default_factory=dict)
    zero: int = 0
    sac_freq: str | None = None
    mixed_precision: bool = False
    #: FP32 is quick on a processor without BF16 instructions; it is counted, not simulated.
    precision: str = "BF16"

    @property
    def name(self) -> str:
        """What tells it from the others."""
        parts = [self.workload, f"micro batch {self.micro_batch}"]
        parts += [f"{key} {value}" for key, value in (*self.sizes.items(), *self.mesh.items())]
        parts += [f"zero {self.zero}"] if self.zero else []
        parts += [f"sac {self.sac_freq}"] if self.sac_freq else []
        parts += [self.precision] if self.precision != "BF16" else []
        return ", ".join([*parts, *(["mixed precision"] if self.mixed_precision else [])])

    @property
    def stored(self) -> StorageRecipe:
        """What the run stores."""
        return MIXED if self.mixed_precision else own(2 if self.precision == "BF16" else 4)

    @property
    def parallelism(self) -> Parallelism:
        """How its ranks share the model."""
        return Parallelism(**self.mesh, reshard_after_forward=self.zero != 2)

    @property
    def parts(self) -> int:
        """Micro-batches of a step: as many as stages."""
        return self.mesh.get("pp", 1)


def _llama(hidden: int, intermediate: int, layers: int, length: int) -> dict[ShapeName, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "sequence_length": length,
    }


NOTHING = _llama(64, 128, 2, 16)
_WIDE, _DEEP = _llama(1600, 3200, 6, 256), _llama(1024, 2816, 8, 512)
_LONG = _llama(512, 1536, 8, 1024)
_FLAT, _FEW = _llama(1024, 2816, 4, 128), _llama(512, 1536, 4, 256)
_SMALL: dict[ShapeName, int] = {"num_hidden_layers": 4, "sequence_length": 256}
_SHORT: dict[ShapeName, int] = {"num_hidden_layers": 6, "sequence_length": 512}
CASES = (
    Case("llama-1.4b", _WIDE),
    Case("llama-1.4b", _DEEP, 2),
    Case("llama-1.4b", _LONG, 2),
    Case("llama-1.4b", _LONG, 2, sac_freq="1/1"),
    Case("llama-1.4b", _LONG, 2, sac_freq="op"),
    Case("gpt2-125m", {}, 1),
    Case("gpt2-125m", {}, 1, mixed_precision=True),
    Case("nemo-bert-base", {}, 2),
    Case("llama-1.4b", _WIDE, 1, {"dp_shard": 2}, zero=3),
    Case("llama-1.4b", _DEEP, 1, {"dp_shard": 2}, zero=3),
    Case("llama-1.4b", _DEEP, 1, {"dp_shard": 2}, zero=2),
    Case("gpt2-125m", _SHORT, 2, {"dp_shard": 2}, zero=3),
    Case("llama-1.4b", _DEEP, 1, {"dp_replicate": 2}),
    Case("llama-1.4b", _DEEP, 2, {"tp": 2}),
    Case("llama-1.4b", _DEEP, 1, {"pp": 2}),
    Case("llama-1.4b", _FLAT, 1, precision="FP32"),
    Case("llama-1.4b", _FEW, 4, precision="FP32"),
    Case("llama-1.4b", _FEW, 4, precision="FP32", sac_freq="1/1"),
    Case("gpt2-125m", _SMALL, 2, precision="FP32"),
)


def measured(case: Case, *, keep: bool) -> int:
    """Return the peak of a run of ``case``, of the rank that needs most."""
    options = ["--plugin-option=written_attention=false"]
    options += [] if keep else ["--plugin-option=keep_memory=false"]
    around = [] if keep else ["env", "MALLOC_MMAP_THRESHOLD_=65536"]
    ranks = case.parallelism.world_size
    sizes = (*case.sizes.items(), *case.mesh.items())
    words = [f"--{key.replace('_', '-')}={value}" for key, value in sizes]
    words += [f"--nproc={ranks}"] if ranks > 1 else []
    words += [f"--zero={case.zero}"] if case.zero else []
    words += [f"--sac-freq={case.sac_freq}"] if case.sac_freq else []
    words += [f"--accumulate={case.parts}", f"--batch-size={case.micro_batch * case.parts}"]
    words += ["--mixed-precision" if case.mixed_precision else "--no-mixed-precision"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*around, sys.executable, "-m", "llmb", "run", "--quiet", "--json", "--audit=off"]
        command += [f"--workload={case.workload}", "--plugin=cpu"]
        command += [f"--precision={case.precision}"]
        command += ["--warmup-steps=1", "--timed-steps=1", *options, *words]
        done = subprocess.run(
            [*command, f"--output-dir={folder}"], capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(done.stderr)
    every = json.loads(done.stdout)["topology"]["ranks"]
    return max(int(rank["peak_memory_bytes"]) for rank in every)


def counted(case: Case) -> float:
    """Return the peak by the memory model (``llmb.workloads.memory``)."""
    workload = find(case.workload, case.sizes)
    return peak_memory(
        MemoryJob(
            workload.shape,
            case.stored,
            micro_batch=case.micro_batch,
            micro_batches=case.parts,
            parallelism=case.parallelism,
            recomputed=recomputed_blocks(case.sac_freq, workload.shape.num_hidden_layers),
            recompute="op" if case.sac_freq == OP else "none",
            moments=workload.recipe.optimizer.moments,
        )
    ).total


def simulated(case: Case) -> dict[str, int]:
    """Return the peak that the simulation says of the rank that needs most, by what it is for."""
    workload, how = find(case.workload, case.sizes), case.parallelism
    found = [
        simulate(
            *(workload, how, rank),
            micro_batch=case.micro_batch,
            micro_batches=case.parts,
            sac_freq=case.sac_freq,
            whole_step=how.pp > 1,
            mixed_precision=case.mixed_precision,
        )
        for rank in range(how.pp)
    ]
    return max(found, key=lambda one: one.peak_bytes).peak


def main() -> None:
    """Print both peaks of every case, and how far they are apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the cases in whose name this is")
    parser.add_argument("--keep", action="store_true", help="let the allocator keep freed memory")
    parser.add_argument("--json", type=Path, help="leave everything in a file")
    asked = parser.parse_args()
    bases: dict[str, int] = {}
    rows = []
    for case in CASES:
        if asked.only not in case.name:
            continue
        mesh = f"{case.precision} {case.mesh}"
        if mesh not in bases:
            nothing = Case("llama-1.4b", NOTHING, 1, case.mesh, precision=case.precision)
            bases[mesh] = round(measured(nothing, keep=asked.keep) - counted(nothing))
            print(f"without a model, {mesh}: {bases[mesh] / 1e9:.3f} GB", flush=True)
        parts = simulated(case) if case.precision == "BF16" else {}
        real = measured(case, keep=asked.keep) - bases[mesh]
        found = {"simulated": sum(parts.values()), "counted": counted(case)}
        rows.append({"case": case.name, "measured": real, **found, "parts": parts})
        words = [
            f"{how} {size / 1e9:.3f} GB ({100 * (size / real - 1):+.1f} %)"
            for how, size in found.items()
            if size
        ]
        print(f"{case.name}: {real / 1e9:.3f} GB measured, {', '.join(words)}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps({"bases": bases, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
