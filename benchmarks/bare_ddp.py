"""A bare torchrun script that trains llmb's model with DDP: what `ranks.py` holds llmb against.

    torchrun --nproc-per-node 2 benchmarks/bare_ddp.py LAYERS HIDDEN LENGTH BATCH STEPS DTYPE

Rank 0 prints the mean seconds of the second half of the steps.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

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
    optimizer = build_optimizer(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    begin = 0.0
    for step in range(steps):
        if step == steps // 2:
            dist.barrier()
            begin = time.perf_counter()
        ids = torch.randint(0, shape.vocab_size, (batch, length), generator=generator)
        optimizer.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids)
        loss.backward()
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        print((time.perf_counter() - begin) / (steps - steps // 2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
