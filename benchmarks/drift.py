"""How far ranks drift from one process: the loss of each of 20 steps, in FP32 and in BF16.

The same model and sequences, by gloo ranks and by one process that takes each step in as many parts
as there are replicas. Sums in another order round otherwise; beside it stands what another order
does in one process: each step whole instead of in two parts.

    python benchmarks/drift.py
    python benchmarks/drift.py --ranks 4 --steps 50
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from llmb.config import BF16, FP32, Mode, Parallelism, Precision, RankAddress, RunConfig
from llmb.parallel.layout import Layout
from llmb.parallel.ranks import Ranks
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, train_loop

SHAPE = LlamaShape(
    vocab_size=2048,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=8,
    sequence_length=64,
)
#: A rate at which the loss falls within the steps: a model that stays where it is cannot drift.
OPTIMIZER = Optimizer(lr=1e-3, eps=1e-8)
SEQUENCES, SEED = 8, 5


def meshes(ranks: int) -> dict[str, Parallelism]:
    """Return the ways in which so many ranks share a step, by name."""
    return {
        "DDP": Parallelism(dp_replicate=ranks),
        "FSDP2": Parallelism(dp_shard=ranks),
        "TP": Parallelism(tp=ranks),
        "TP, sequence and loss": Parallelism(tp=ranks, sequence_parallel=True, loss_parallel=True),
    }


def losses(
    precision: Precision, mesh: Parallelism, parts: int, steps: int, ranks: Ranks | None = None
) -> list[float]:
    """Return the loss of each step, taken by ``ranks``, or by one process in ``parts``."""
    dtype = getattr(torch, precision.dtype)
    model = build(SHAPE, SEED, dtype)
    program: Callable[..., Any] = model
    layout = None
    if ranks is not None:
        config = RunConfig(
            workload="llama-1.4b",
            mode=Mode.TRAIN,
            plugin="cpu",
            plugin_options={},
            device="cpu",
            precision=precision,
            batch_size=SEQUENCES // mesh.replicas,
            seed=SEED,
            warmup_steps=1,
            timed_steps=1,
            repeats=1,
            parallelism=mesh,
        )
        layout = Layout(config)
        layout.spread(model, SHAPE)
        program = layout.program(model)

    def batches(seed: int) -> list[Batch]:
        # Few tokens, that there is something to learn.
        batch = make_batch(seed % 4, SEQUENCES, SHAPE)
        if layout is None:
            return batch.split(parts)
        return [batch.split(mesh.replicas)[layout.mesh.replica]]

    found = []
    stream = [Step(index, index, fence=False) for index in range(steps)]
    optimizer = build_optimizer(model.parameters(), OPTIMIZER, foreach=True)
    context = nullcontext if layout is None else lambda: layout.part(nullcontext())
    for done in train_loop(program, optimizer, stream, batches, context=context):
        loss = done.loss if ranks is None else ranks.mean(done.loss, torch.float64)
        found.append(float(loss))
    return found


def of_rank(rank: int, world_size: int, port: int, steps: int, output: Path) -> None:
    """Train in every way as one of the ranks; rank 0 leaves what came of it."""
    torch.set_num_threads(1)
    place = RankAddress(
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        host="127.0.0.1",
        port=port,
    )
    found = {}
    with Ranks(place, "gloo", 0, 300.0, sys.exit) as ranks:
        for precision in (FP32, BF16):
            for name, mesh in meshes(world_size).items():
                found[f"{precision.name} {name}"] = losses(precision, mesh, 1, steps, ranks)
        if place.leads:
            output.write_text(json.dumps(found))


def together(world_size: int, steps: int) -> dict[str, list[float]]:
    """Return the losses of every way, by name."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "losses.json"
        ranks = [
            spawn.Process(target=of_rank, args=(rank, world_size, port, steps, output))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit("a rank failed")
        found: dict[str, list[float]] = json.loads(output.read_text())
        return found


def rows(shared: Mapping[str, list[float]], world_size: int, steps: int) -> Iterator[str]:
    """Yield a line of the table for each way."""
    for precision in (FP32, BF16):
        alone = {parts: losses(precision, Parallelism(), parts, steps) for parts in (1, world_size)}
        fell = f"{alone[1][0]:.3f} to {alone[1][-1]:.3f}"
        yield _row(precision, "one process, in parts", fell, alone[world_size], alone[1])
        for name, mesh in meshes(world_size).items():
            found = shared[f"{precision.name} {name}"]
            yield _row(precision, name, fell, found, alone[mesh.replicas])


def _row(precision: Precision, name: str, fell: str, a: list[float], b: list[float]) -> str:
    far = [abs(x - y) / abs(y) for x, y in zip(a, b, strict=True)]
    return f"| {precision.name} | {name} | {fell} | {far[0]:.1e} | {max(far):.1e} | {far[-1]:.1e} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4, 8))
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    shared = together(given.ranks, given.steps)
    torch.set_num_threads(1)
    print("| precision | ranks share | loss | step 1 | worst step | last step |")
    print("|---|---|---|---|---|---|")
    for line in rows(shared, given.ranks, given.steps):
        print(line)


if __name__ == "__main__":
    main()
