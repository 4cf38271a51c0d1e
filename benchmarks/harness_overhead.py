"""What the harness costs a step, against the same model in a bare loop.

Two measurements. *Shares*: within one process, the real worker loop (channel, ticks, fences every
ten steps) is driven at llama-1.4b, and the time outside the train loop's own step is counted: that
is the whole of the harness's work, free of the noise between processes. *Pairs*: tokens/s of
``llmb run`` and of a bare script, in turns.

    python benchmarks/harness_overhead.py --steps 30 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from paired import alternate, report

BARE = """
import sys, time, torch
from llmb.plugin.builtin import host
from llmb.reference.data import random_tokens
from llmb.reference.llama import build_llama
from llmb.reference.optimizer import build_adamw
from llmb.reference.shapes import LlamaShape
steps = int(sys.argv[1])
shape = LlamaShape()
model = build_llama(shape, 0, torch.bfloat16)
host.keep_freed_memory()
optimizer = build_adamw(model.parameters(), fused=True)
for i in range(steps + 1):
    if i == 1:
        begin = time.perf_counter()
    ids = random_tokens(i, 1, shape.sequence_length, shape.vocab_size)
    model(ids, labels=ids).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(steps * shape.sequence_length / (time.perf_counter() - begin))
"""


def environment() -> dict[str, str]:
    """Return the environment the cpu plugin asks for, so that both sides have it."""
    import os

    from llmb.plugin.builtin.host import compute_threads

    return {**os.environ, "OMP_NUM_THREADS": str(compute_threads()), "THP_MEM_ALLOC_ENABLE": "1"}


def bare(steps: int) -> float:
    """Return tokens/s of the bare loop."""
    command = [sys.executable, "-c", BARE, str(steps)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    return float(done.stdout)


def llmb(steps: int) -> float:
    """Return tokens/s of ``llmb run``."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmb", "run", "--plugin", "cpu", "--precision", "BF16"]
        command += ["--batch-size", "1", "--timed-steps", str(steps), "--json", "--quiet"]
        command += ["--output-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["result"]["tokens_per_second"])


def shares(steps: int) -> None:
    """Drive the worker's own loop in this process and print where the time goes."""
    import torch

    from llmb.observe.weights import FenceSamples
    from llmb.plugin.builtin import host
    from llmb.plugin.builtin.cpu import CpuBackend
    from llmb.reference.data import random_tokens
    from llmb.reference.llama import build_llama
    from llmb.reference.optimizer import build_adamw
    from llmb.reference.shapes import LlamaShape
    from llmb.reference.train_loop import train_loop
    from llmb.wire.channel import Channel, ChannelClosedError
    from llmb.wire.messages import StepOrder, Stop, Tick
    from llmb.worker import StepStream, fence

    ours, theirs = socket.socketpair()
    supervisor, worker = Channel(ours), Channel(theirs)
    for i in range(steps + 16):
        supervisor.send(StepOrder(index=i, seed=i, fence=(i + 1) % 10 == 0))
    supervisor.send(Stop(steps=steps))

    def drain() -> None:
        with suppress(ChannelClosedError):
            while supervisor.receive() is not None:
                pass

    threading.Thread(target=drain, daemon=True).start()
    shape, backend = LlamaShape(), CpuBackend()
    model = build_llama(shape, 0, torch.bfloat16)
    host.keep_freed_memory()
    optimizer = build_adamw(model.parameters(), fused=True)
    samples = FenceSamples(model.parameters(), 0)
    stream = StepStream(worker)
    inside: list[float] = []
    begin_step = 0.0

    def batch(seed: int) -> torch.Tensor:
        nonlocal begin_step
        ids = random_tokens(seed, 1, shape.sequence_length, shape.vocab_size)
        begin_step = time.perf_counter()
        return ids

    begin = time.perf_counter()
    for done in train_loop(model, optimizer, stream, batch):
        inside.append(time.perf_counter() - begin_step)
        worker.send(Tick(index=done.step.index, ns=time.monotonic_ns()))
        if done.step.fence:
            worker.send(fence(done.step, done.loss, backend, samples, stream.starved))
    total = time.perf_counter() - begin
    outside = total - sum(inside)
    print(f"{steps} steps in {total:.2f} s, median step {statistics.median(inside):.3f} s")
    print(f"outside the step: {1e3 * outside / steps:.2f} ms a step, {outside / total:.3%}")


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares-only", action="store_true")
    arguments = parser.parse_args()
    if arguments.shares_only:
        shares(arguments.steps)
        return
    own = [sys.executable, str(Path(__file__)), "--shares-only", "--steps", str(arguments.steps)]
    subprocess.run(own, env=environment(), check=True)
    pairs = alternate(
        arguments.rounds, lambda: llmb(arguments.steps), lambda: bare(arguments.steps)
    )
    report("llmb run, tokens/s", "bare loop, tokens/s", pairs)


if __name__ == "__main__":
    main()
