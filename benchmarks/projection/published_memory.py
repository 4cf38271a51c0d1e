"""Holds simulated and projected memory against torchtitan's published peaks of Llama 3.1 8B.

    python -m benchmarks.projection.published_memory

FSDP2 on H100s, two sequences of 8,192 tokens a rank, float32 weights gathered in BF16, selective
recomputation by operation (pytorch/torchtitan, benchmarks). Theirs computes every second product
again, which ``--sac-freq op`` does not: both are simulated, and so are whole blocks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from llmb.config import Parallelism
from llmb.processes.modes import checkpointing
from llmb.projection.job import RECOMPUTE, Job, Model
from llmb.simulation.rank import simulate
from llmb.workloads import find
from llmb.workloads.memory import MEGATRON

#: GiB by ranks.
PUBLISHED = {8: 82.4, 128: 67.0}
_GIB = 2**30
_contexts: Any = create_selective_checkpoint_contexts


def every_second(plain: Any) -> Any:
    """Return contexts of one block in which every second product is computed again."""
    seen: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
        if getattr(operator, "overloadpacket", operator) is torch.ops.aten.mm:
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        kept: CheckpointPolicy = plain(context, operator)
        return kept

    return _contexts(policy)


def main() -> None:
    """Print what is published, simulated and projected of each number of ranks."""
    workload = find("llama-3.1-8b", {"sequence_length": 8192})
    model, checkpoints = Model.of(workload.shape), vars(checkpointing)
    for ranks, published in PUBLISHED.items():
        print(f"{ranks} ranks, published {published} GiB")
        for name, frequency, contexts in (
            ("every second product", "op", every_second),
            ("op", "op", _contexts),
            ("whole blocks", "1/1", _contexts),
        ):
            checkpoints["create_selective_checkpoint_contexts"] = contexts
            found = simulate(
                *(workload, Parallelism(dp_shard=ranks), 0),
                micro_batch=2,
                sac_freq=frequency,
                mixed_precision=True,
            )
            parts = {what: round(size / _GIB, 1) for what, size in found.peak.items()}
            print(f"  simulated, {name}: {found.peak_bytes / _GIB:.1f} GiB {parts}", flush=True)
        for recompute in RECOMPUTE:
            job = Job(model, dp=ranks, zero=3, micro_batch=2, recompute=recompute, stored=MEGATRON)
            print(f"  projected, {recompute}: {job.memory.total / _GIB:.1f} GiB")


if __name__ == "__main__":
    main()
