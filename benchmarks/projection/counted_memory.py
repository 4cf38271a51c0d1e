"""Holds the memory model against simulated ranks on jobs of larger sizes than the tests have.

    python -m benchmarks.projection.counted_memory [--only TEXT]

Each job is simulated on the first, second and last rank of its pipeline: minutes for all.
"""

from __future__ import annotations

import argparse
from typing import Any

from llmb.config import Parallelism, ShapeName
from llmb.simulation.rank import simulate
from llmb.workloads import Workload, find
from llmb.workloads.checkpointing import OP, recomputed_blocks
from llmb.workloads.memory import LLMB, MIXED, MemoryJob, peak_memory

_SIX: dict[ShapeName, int] = {"num_hidden_layers": 6}
_DEEP: dict[ShapeName, int] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "sequence_length": 512,
}
#: Workload, changed sizes, ranks, and options of the simulation.
JOBS: list[tuple[str, dict[ShapeName, int], Parallelism, dict[str, Any]]] = [
    ("llama-1.4b", {}, Parallelism(), {}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 8}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "1/1"}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "1/2"}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 8, "sac_freq": "op"}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 4, "mixed_precision": True}),
    ("llama-1.4b", _DEEP, Parallelism(), {"micro_batch": 1, "mixed_precision": True}),
    ("gpt2-125m", {}, Parallelism(), {}),
    ("gpt2-125m", {}, Parallelism(), {"micro_batch": 8}),
    ("gpt2-125m", {}, Parallelism(), {"micro_batch": 8, "sac_freq": "1/1"}),
    ("gpt2-125m", {}, Parallelism(), {"micro_batch": 8, "sac_freq": "op"}),
    ("gpt2-125m", {}, Parallelism(), {"micro_batch": 2, "mixed_precision": True}),
    ("gpt2-350m", {"sequence_length": 128}, Parallelism(), {}),
    ("nemo-bert-base", {}, Parallelism(), {}),
    ("nemo-bert-base", {}, Parallelism(), {"micro_batch": 8}),
    ("nemo-bert-base", {}, Parallelism(), {"micro_batch": 8, "sac_freq": "1/1"}),
    ("nemo-bert-base", {"sequence_length": 128}, Parallelism(), {"micro_batch": 1}),
    ("nemo-bert-base", {}, Parallelism(), {"micro_batch": 4, "mixed_precision": True}),
    ("llama-1.4b", _DEEP, Parallelism(dp_replicate=4), {"micro_batch": 4}),
    ("llama-1.4b", _SIX, Parallelism(dp_replicate=4), {"micro_batch": 1}),
    ("gpt2-125m", {}, Parallelism(dp_replicate=4), {"micro_batch": 1}),
    ("llama-1.4b", _SIX, Parallelism(dp_shard=4), {"micro_batch": 1}),
    ("llama-1.4b", _SIX, Parallelism(dp_shard=4), {"micro_batch": 32}),
    ("llama-1.4b", _DEEP, Parallelism(dp_shard=8), {"micro_batch": 8}),
    ("llama-1.4b", _DEEP, Parallelism(dp_shard=8), {"micro_batch": 8, "sac_freq": "1/1"}),
    (
        "llama-3.1-8b",
        {"num_hidden_layers": 8, "sequence_length": 1024},
        Parallelism(dp_shard=8),
        {"micro_batch": 1},
    ),
    (
        "llama-3.1-8b",
        {"num_hidden_layers": 8, "sequence_length": 1024},
        Parallelism(dp_shard=8, reshard_after_forward=False),
        {"micro_batch": 1},
    ),
    (
        "llama-3.1-8b",
        {"num_hidden_layers": 8, "sequence_length": 1024},
        Parallelism(dp_shard=8),
        {"micro_batch": 1, "mixed_precision": True},
    ),
    (
        "llama-1.4b",
        _DEEP,
        Parallelism(dp_shard=8, reshard_after_forward=False),
        {"micro_batch": 4},
    ),
    ("llama-1.4b", _SIX, Parallelism(dp_shard=4, reshard_after_forward=False), {"micro_batch": 1}),
    ("gpt2-125m", {}, Parallelism(dp_shard=4), {"micro_batch": 2}),
    ("gpt2-125m", {}, Parallelism(dp_shard=4), {"micro_batch": 1}),
    ("nemo-bert-base", {}, Parallelism(dp_shard=4), {"micro_batch": 2}),
    ("llama-1.4b", _DEEP, Parallelism(tp=4), {"micro_batch": 8}),
    ("llama-1.4b", _SIX, Parallelism(tp=4), {"micro_batch": 1}),
    ("llama-1.4b", _DEEP, Parallelism(tp=4, sequence_parallel=True), {"micro_batch": 8}),
    (
        "llama-1.4b",
        _DEEP,
        Parallelism(tp=4, sequence_parallel=True, loss_parallel=True),
        {"micro_batch": 8},
    ),
    ("gpt2-125m", {}, Parallelism(tp=4), {"micro_batch": 2, "mixed_precision": True}),
    ("nemo-bert-base", {}, Parallelism(tp=4), {"micro_batch": 4}),
    ("llama-1.4b", _DEEP, Parallelism(tp=2, dp_replicate=2), {"micro_batch": 4}),
    ("llama-1.4b", _SIX, Parallelism(tp=2, dp_replicate=2), {"micro_batch": 1}),
    ("llama-1.4b", _DEEP, Parallelism(tp=2, dp_shard=4), {"micro_batch": 4}),
    ("llama-1.4b", _SIX, Parallelism(tp=2, dp_shard=4), {"micro_batch": 1}),
    ("llama-1.4b", _SIX, Parallelism(dp_replicate=2, dp_shard=4), {"micro_batch": 1}),
    ("llama-1.4b", _DEEP, Parallelism(pp=4), {"micro_batch": 4, "micro_batches": 4}),
    ("llama-1.4b", _DEEP, Parallelism(pp=4), {"micro_batch": 4, "micro_batches": 16}),
    (
        "llama-1.4b",
        _DEEP,
        Parallelism(pp=4, schedule="GPipe"),
        {"micro_batch": 2, "micro_batches": 8},
    ),
    (
        "llama-1.4b",
        _DEEP,
        Parallelism(pp=2, schedule="Interleaved1F1B"),
        {"micro_batch": 4, "micro_batches": 4},
    ),
    ("llama-1.4b", _SIX, Parallelism(pp=2, dp_replicate=2), {"micro_batch": 1, "micro_batches": 4}),
    (
        "llama-1.4b",
        _SIX,
        Parallelism(pp=2, dp_shard=2, reshard_after_forward=False),
        {"micro_batch": 2, "micro_batches": 4},
    ),
    ("llama-1.4b", _SIX, Parallelism(pp=2, dp_shard=2), {"micro_batch": 2, "micro_batches": 4}),
    ("llama-1.4b", _SIX, Parallelism(pp=2, tp=2), {"micro_batch": 4, "micro_batches": 4}),
    (
        "alcf-1t-readme",
        {"num_hidden_layers": 8, "sequence_length": 512},
        Parallelism(pp=4, tp=4, dp_replicate=2),
        {"micro_batch": 1, "micro_batches": 8, "sac_freq": "1/1"},
    ),
]


def counted(workload: Workload, how: Parallelism, options: dict[str, Any]) -> float:
    """Return the peak of the fullest rank by the memory model, in bytes."""
    frequency = options.get("sac_freq")
    return peak_memory(
        MemoryJob(
            workload.shape,
            MIXED if options.get("mixed_precision") else LLMB,
            micro_batch=options.get("micro_batch", 1),
            micro_batches=options.get("micro_batches", 1),
            parallelism=how,
            recomputed=recomputed_blocks(frequency, workload.shape.num_hidden_layers),
            recompute="op" if frequency == OP else "none",
            moments=workload.recipe.optimizer.moments,
        )
    ).total


def main() -> None:
    """Print both peaks of every job, and how far they are apart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="the jobs in whose name this is")
    asked = parser.parse_args()
    worst = 0.0
    for name, sizes, how, options in JOBS:
        words = {**sizes, **how.model_dump(exclude_defaults=True), **options}
        title = ", ".join([name, *(f"{key} {value}" for key, value in words.items())])
        if asked.only not in title:
            continue
        workload, each = find(name, sizes), how.world_size // how.pp
        places = sorted(
            {how.rank_of(stage) for stage in {0, min(1, how.stages - 1), how.stages - 1}}
        )
        exact = max(simulate(workload, how, each * p, **options).peak_bytes for p in places)
        off = 100 * (counted(workload, how, options) / exact - 1)
        worst = max(worst, abs(off))
        print(f"{off:+.1f} % of {exact / 1e9:.3f} GB: {title}", flush=True)
    print(f"at most {worst:.1f} % apart")


if __name__ == "__main__":
    main()
