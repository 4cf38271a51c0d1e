"""Times steps of a small model by hand: until recorded, until done, and reading back.

Run as a script by ``test_synchronisation.py``; prints seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from llmb_xla.backend import XlaBackend

from llmb import workloads
from llmb.reference.data import random_tokens
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer


def main(batch_size: int, **overrides: int) -> None:
    backend = XlaBackend("xla")
    shape = workloads.find("llama-1.4b", overrides).shape
    model = build(shape, 7, torch.float32, "xla")
    optimizer = build_optimizer(model.parameters(), foreach=True)
    seconds: dict[str, list[float]] = {"recorded": [], "done": [], "read": []}
    for seed in range(9):
        ids = random_tokens(seed, batch_size, shape.sequence_length, shape.vocab_size).to("xla")
        begin = time.perf_counter()
        loss = model(ids, labels=ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        recorded = time.perf_counter()
        backend.step_end()
        backend.synchronize()
        done = time.perf_counter()
        loss.detach().item()
        read = time.perf_counter()
        if seed >= 3:  # compiled by then
            seconds["recorded"].append(recorded - begin)
            seconds["done"].append(done - begin)
            seconds["read"].append(read - done)
    # A busy host only makes a time longer, never shorter.
    print(json.dumps({name: min(values) for name, values in seconds.items()}))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
