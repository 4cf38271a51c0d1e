"""A plain loop without llmb's harness: its reference model, optimizer and train loop, eager, BF16.

    python plain.py --batch-size 64 --steps 20 [--device cuda] [--preset debug]

Prints JSON: tokens/s over all timed steps, between two synchronisations. No process of its own, no
pauses, no audit: held against ``llmb run -O compile=none`` it shows what the harness takes.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import torch

from llmb.cli.run import _DEBUG_PRESET
from llmb.reference.data import Batch, random_tokens
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, train_loop

#: Untimed: the first steps choose kernels and fill the allocator's pool.
WARMUP = 3


def measure(device: torch.device, shape: LlamaShape, batch_size: int, steps: int) -> dict:
    """Return tokens/s and the last loss of ``steps`` steps of ``batch_size`` sequences."""
    model = build(shape, 0, torch.bfloat16, device)
    optimizer = build_optimizer(model.parameters(), fused=True)

    def batches(seed: int) -> list[Batch]:
        ids = random_tokens(seed, batch_size, shape.sequence_length, shape.vocab_size)
        return [Batch(ids, ids).to(device)]

    todo = (Step(index, index, fence=False) for index in range(WARMUP + steps))
    begin = 0.0
    for done in train_loop(model, optimizer, todo, batches):
        if done.step.index in (WARMUP - 1, WARMUP + steps - 1):
            loss = float(done.loss)
            synchronize(device)
            if done.step.index == WARMUP - 1:
                begin = time.perf_counter()
    seconds = time.perf_counter() - begin
    tokens = steps * batch_size * shape.sequence_length
    return {"tokens_per_second": tokens / seconds, "step_s": seconds / steps, "loss_last": loss}


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def debug(shape: LlamaShape) -> LlamaShape:
    """Return the sizes of ``llmb run --preset debug``."""
    sizes = {name: size for name, size in _DEBUG_PRESET.items() if hasattr(shape, name)}
    return replace(shape, **sizes, num_key_value_heads=sizes["num_attention_heads"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="any torch device; left out: the accelerator")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--preset", choices=["debug"])
    options = parser.parse_args()
    device = torch.device(options.device or torch.accelerator.current_accelerator() or "cpu")
    shape = debug(LlamaShape()) if options.preset else LlamaShape()
    print(json.dumps(measure(device, shape, options.batch_size, options.steps)))
