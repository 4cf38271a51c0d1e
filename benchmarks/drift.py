"""How far honest runs drift apart: ranks from one process, and runs at each workload's rate.

By default the loss of each of 20 steps, in FP32 and in BF16: the same model and sequences, by gloo
ranks and by one process that takes each step in as many parts as there are replicas. Sums in
another order round otherwise; beside it stands what another order does in one process: each step
whole instead of in two parts.

With ``--rates``: for how many steps two honest runs agree at the learning rate of each workload, on
fresh random tokens, at this script's shapes. One takes each step whole, the other in two parts. A
step agrees while its gradients differ by at most 3 times (FP32: 12) the honest error of one step,
as rule L1 asks of all compared steps together.

    python benchmarks/drift.py
    python benchmarks/drift.py --ranks 4 --steps 50
    python benchmarks/drift.py --rates --steps 80
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmb import workloads
from llmb.audit import equivalence
from llmb.audit.honest_error import times_of
from llmb.config import BF16, FP32, Mode, Parallelism, Precision, RankAddress, RunConfig
from llmb.inputs.start import values_of
from llmb.parallel.layout import Layout
from llmb.parallel.ranks import Ranks
from llmb.records import draws
from llmb.records.draws import Draws
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer, Recipe
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
#: Of two runs at each rate: shapes, sequences of a step, elements of each gradient to compare.
SMALLER = replace(SHAPE, hidden_size=128, intermediate_size=256, sequence_length=32)
FEW_SEQUENCES, ELEMENTS = 2, 1024
NONCE = "17" * 16


def meshes(ranks: int) -> dict[str, Parallelism]:
    """Return the ways in which so many ranks share a step, by name."""
    return {
        "DDP": Parallelism(dp_replicate=ranks),
        "FSDP2": Parallelism(dp_shard=ranks),
        "TP": Parallelism(tp=ranks),
        "TP, sequence and loss": Parallelism(tp=ranks, sequence_parallel=True, loss_parallel=True),
    }


def run_config(precision: Precision, mesh: Parallelism) -> RunConfig:
    """Return the configuration of a run of this script."""
    return RunConfig(
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


def losses(
    precision: Precision, mesh: Parallelism, parts: int, steps: int, ranks: Ranks | None = None
) -> list[float]:
    """Return the loss of each step, taken by ``ranks``, or by one process in ``parts``."""
    dtype = getattr(torch, precision.dtype)
    model = build(SHAPE, SEED, dtype)
    program: Callable[..., Any] = model
    layout = None
    if ranks is not None:
        layout = Layout(run_config(precision, mesh))
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


def recipes() -> dict[Recipe, list[str]]:
    """Return how the workloads are trained, but for batch sizes, and the workloads of each."""
    found: dict[Recipe, list[str]] = {}
    for name, workload in workloads.WORKLOADS.items():
        if Mode.TRAIN in workload.modes:
            one = replace(workload.recipe, micro_batch_size=None, accumulate=1)
            found.setdefault(one, []).append(name)
    return found


def gradients(
    recipe: Recipe, precision: Precision, rates: Sequence[float], parts: int, *, wide: bool = False
) -> list[Tensor]:
    """Return gradients of a step for each of ``rates``, in float64: a sample of each parameter.

    The run takes each step in ``parts``. ``wide``: from the same weights, computed in FP32.
    """
    narrow = getattr(torch, precision.dtype)
    mixed = recipe.mixed_precision and precision is not FP32
    workload = replace(workloads.WORKLOADS["llama-1.4b"], shape=SMALLER, recipe=recipe)
    values = values_of(run_config(precision, Parallelism()), workload)
    model = build(SMALLER, SEED, torch.float32 if mixed else narrow, values=values)
    if wide:
        model, mixed = model.to(torch.float64), False
    optimizer = build_optimizer(model.parameters(), recipe.optimizer, foreach=True)
    found: list[Tensor] = []

    def batches(seed: int) -> list[Batch]:
        return make_batch(seed, FEW_SEQUENCES, SMALLER).split(parts)

    def pause(step: Step, loss: Tensor) -> bool:
        for group in optimizer.param_groups:
            group["lr"] = rates[step.index]
        every = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append(torch.cat([g[:: -(-len(g) // ELEMENTS)].double() for g in every]))
        return False

    stream = [Step(index, index, fence=False) for index in range(len(rates))]
    context = partial(torch.autocast, "cpu", narrow) if mixed else nullcontext
    clip = recipe.clip_grad_norm
    for _ in train_loop(
        model, optimizer, stream, batches, pause, context=context, clip_grad_norm=clip
    ):
        pass
    return found


def agreement(recipe: Recipe, names: Sequence[str], precision: Precision, steps: int) -> str:
    """Return a line of the table: how far two honest runs at the rate of ``names`` are apart."""
    drawn = Draws(NONCE, recipe.optimizer, ledger=True)
    rates = [drawn.rate(step) for step in range(steps)]
    whole, halved = (gradients(recipe, precision, rates, parts) for parts in (1, 2))
    (right,) = gradients(recipe, precision, rates[:1], 1, wide=True)
    honest = max(_apart(whole[:1], [right]), equivalence.least_error(precision))
    limit = honest * (times_of(precision))
    apart = [_apart([a], [b]) for a, b in zip(halved, whole, strict=True)]
    compared = draws.steps_compared(rates, recipe.optimizer)
    together = _apart(halved[:compared], whole[:compared])
    agreed = next((step for step, far in enumerate(apart) if not far <= limit), None)
    told = f"all {steps}" if agreed is None else str(agreed)
    drawing = f"{recipe.optimizer.lr:g}" + f" to {draws.LARGEST_RATE:g}" * drawn.varies
    return (
        f"| {recipe.optimizer.name} {drawing} | {', '.join(names[:2])}{', ...' * (len(names) > 2)} "
        f"| {precision.name}{' mixed' * (recipe.mixed_precision and precision is not FP32)} "
        f"| {honest:.1e} | {told} | {apart[0] / limit:.2f} | {max(apart) / limit:.2f} "
        f"| {compared} | {together / limit:.2f} |"
    )


def _apart(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the relative distance of all gradients together."""
    one, other = torch.cat([*some]), torch.cat([*others])
    return float((one - other).norm() / other.norm())


def by_rate(steps: int) -> Iterator[str]:
    """Yield the table of how long honest runs agree."""
    yield (
        "| optimizer, rate | workloads | precision | honest error | steps that agree | first step "
        "by limit | worst step by limit | compared by L1 | these together by limit |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for recipe, names in recipes().items():
        for precision in (FP32, BF16):
            yield agreement(recipe, names, precision, steps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(2, 4, 8))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rates", action="store_true", help="runs at the rate of each workload")
    given = parser.parse_args()
    if given.rates:
        torch.set_num_threads(1)
        for line in by_rate(given.steps):
            print(line, flush=True)
        return
    shared = together(given.ranks, given.steps)
    torch.set_num_threads(1)
    print("| precision | ranks share | loss | step 1 | worst step | last step |")
    print("|---|---|---|---|---|---|")
    for line in rows(shared, given.ranks, given.steps):
        print(line)


if __name__ == "__main__":
    main()
