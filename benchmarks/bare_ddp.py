"""A bare torchrun script that trains llmb's model with DDP: what `ranks.py` holds llmb against.

    torchrun --nproc-per-node 2 benchmarks/bare_ddp.py LAYERS HIDDEN LENGTH BATCH STEPS DTYPE

Rank 0 prints the median seconds of STEPS steps after as many others. Memory is kept and the
optimizer fused as the plugin `cpu` has them, so that what is left is llmb's own.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from llmb.plugin.builtin.host import keep_freed_memory
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape


def main() -> None:
    """Train, and say how long a step took."""
    layers, hidden, length, batch, steps = map(int, sys.argv[1:6])
    dist.init_process_group("gloo")
    shape = LlamaShape(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        sequence_length=length,
    )
    model = DistributedDataParallel(build(shape, 1, getattr(torch, sys.argv[6])))
    keep_freed_memory()
    optimizer = build_optimizer(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(dist.get_rank())
    stamps = []
    for _ in range(2 * steps):
        ids = torch.randint(0, shape.vocab_size, (batch, length), generator=generator)
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids)
        loss.backward()
        optimizer.step()
        stamps.append(time.perf_counter())
    if dist.get_rank() == 0:
        timed = stamps[-steps - 1 :]
        print(statistics.median(after - before for before, after in pairwise(timed)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
