"""What the harness costs a step, against the same model in a bare loop.

Three measurements. *Shares*: within one process, the real worker loop (channel, pauses, ticks,
fences every ten steps) is driven at llama-1.4b, and the time outside the train loop's own step is
counted: that is the whole of the harness's work, free of the noise between processes. *Audited*: in
that same loop every fourth step is looked at; such a step and the next, in which it is looked at
once more, are held against the two after them. *Pairs*: tokens/s of ``llmb run`` and of a bare
script, in turns.

    python benchmarks/harness_overhead.py --steps 30 --rounds 3
    python benchmarks/harness_overhead.py --steps 96 --audited
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
from dataclasses import replace
from pathlib import Path

from paired import alternate, report

BARE = """
import sys, time, torch
from llmb.plugin.builtin import host
from llmb.reference.data import random_tokens
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape
steps = int(sys.argv[1])
shape = LlamaShape()
model = build(shape, 0, torch.bfloat16)
host.keep_freed_memory()
optimizer = build_optimizer(model.parameters(), fused=True)
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


#: Steps from one audited step to the next, when they are measured: two with a look, two without.
_PERIOD = 4
#: What a run of 50 steps has inside its window.
_AUDITED, _WINDOW = 2, 50


def shares(steps: int, *, audited: bool) -> None:
    """Drive the worker's own loop in this process and print where the time goes."""
    import torch

    from llmb.config import BF16, RunConfig
    from llmb.observe.step_sampler import StepSampler
    from llmb.observe.weights import FenceSamples
    from llmb.plugin.builtin import host
    from llmb.plugin.builtin.cpu import CpuBackend
    from llmb.plugin.manager import Plugin
    from llmb.processes.step_stream import Batches, FencePayload, StepStream, fence
    from llmb.reference.models import build
    from llmb.reference.optimizer import build_optimizer
    from llmb.reference.shapes import LlamaShape
    from llmb.reference.train_loop import train_loop
    from llmb.supervision.stream import drive, plan_window
    from llmb.wire.channel import Channel
    from llmb.wire.messages import Ready, Tick, Worked

    config = RunConfig(
        workload="llama-1.4b",
        mode="train",
        plugin="cpu",
        plugin_options={},
        device="cpu",
        precision=BF16,
        batch_size=1,
        seed=0,
        warmup_steps=1,
        timed_steps=steps,
        repeats=1,
    )
    ours, theirs = socket.socketpair()
    supervisor, worker = Channel(ours), Channel(theirs)
    window = plan_window(config, 0)
    audits = tuple(range(window.start, window.stop - _PERIOD + 1, _PERIOD)) if audited else ()
    window = replace(window, audits=audits)
    orders = (supervisor, config, window, 0, 0, "host", lambda message: None)
    threading.Thread(target=drive, args=orders, daemon=True).start()

    shape, backend, plugin = LlamaShape(), CpuBackend(), Plugin("cpu")
    model = build(shape, 0, torch.bfloat16)
    host.keep_freed_memory()
    optimizer = build_optimizer(model.parameters(), fused=True)
    samples = FenceSamples(model.parameters(), 0)
    stream = StepStream(worker, StepSampler(model, optimizer))
    batches = Batches(config, shape, backend)
    inside: list[float] = []
    stamps: list[float] = []
    began = paused = 0.0

    def batch(seed: int) -> torch.Tensor:
        nonlocal began, paused
        ids = batches.make(seed)
        began, paused = time.perf_counter(), stream.pause_ns / 1e9
        return ids

    worker.send(Ready())
    begin = time.perf_counter()
    for done in train_loop(model, optimizer, stream, batch, stream.pause):
        inside.append(time.perf_counter() - began - (stream.pause_ns / 1e9 - paused))
        worker.send(Tick(index=done.step.index, ns=time.monotonic_ns()))
        if done.step.fence:
            worker.send(fence(done, plugin, backend, samples, stream, FencePayload()))
        stamps.append(time.perf_counter())
        total = time.perf_counter() - begin
    worker.send(Worked(steps=stream.done))
    tell(inside, total, stream.pause_ns)
    if audits:
        extra(stamps, audits)


def tell(inside: list[float], total: float, pause_ns: int) -> None:
    """Print how much of ``total`` seconds lies outside the steps, which took ``inside``."""
    outside, count = total - sum(inside), len(inside)
    print(f"{count} steps in {total:.2f} s, median step {statistics.median(inside):.3f} s")
    print(
        f"outside the step: {1e3 * outside / count:.2f} ms a step, {outside / total:.3%}; "
        f"of it pauses {pause_ns / 1e6 / count:.2f} ms"
    )


def extra(stamps: list[float], audits: tuple[int, ...]) -> None:
    """Print what looking at a step takes, in shares of a step and of a window of 50 steps."""
    shares = []
    for step in audits:
        before, middle, after = (stamps[step + offset] for offset in (-1, 1, 3))
        shares.append(2 * ((middle - before) - (after - middle)) / (after - middle))
    mean = statistics.mean(shares)
    error = statistics.stdev(shares) / len(shares) ** 0.5
    print(
        f"an audited step takes {mean:+.2%} of a step more (standard error {error:.2%}, "
        f"median {statistics.median(shares):+.2%}, {len(shares)} of them)"
    )
    low, high = ((mean + sign * 2 * error) * _AUDITED / _WINDOW for sign in (-1, 1))
    print(
        f"{_AUDITED} of them in a window of {_WINDOW} steps: {mean * _AUDITED / _WINDOW:+.3%} of "
        f"it ({low:+.3%} to {high:+.3%})"
    )


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--audited", action="store_true", help="what looking at a step costs")
    parser.add_argument("--shares-only", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shares_only:
        shares(arguments.steps, audited=arguments.audited)
        return
    own = [sys.executable, str(Path(__file__)), "--shares-only", "--steps", str(arguments.steps)]
    own += ["--audited"] if arguments.audited else []
    subprocess.run(own, env=environment(), check=True)
    if arguments.audited:
        return
    pairs = alternate(
        arguments.rounds, lambda: llmb(arguments.steps), lambda: bare(arguments.steps)
    )
    report("llmb run, tokens/s", "bare loop, tokens/s", pairs)


if __name__ == "__main__":
    main()
