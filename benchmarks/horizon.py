"""For how many steps do two honest BF16 trainings of a workload stay together?

Two trainings of one model on the same fresh random tokens: one with torch's attention, one with it
spelled out; products in FP32, rounded to BF16 once. Printed is the relative distance of all
gradients in each step. By default rates are drawn and first weights are sharp, as in a run; with
``--rate`` the rate is constant and weights are plain, as with ``--constant-rate``. The vocabulary
and the sequences are smaller than the workload's, its width and depth are its own (``--layers``:
another depth). Dropout is left out.

    python benchmarks/horizon.py gpt2-125m nemo-bert-base
    python benchmarks/horizon.py gpt2-125m --rate 1e-3 --steps 14
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from deep_drift import first_value, products, sample
from torch import Tensor

from llmb import workloads
from llmb.inputs.start import start_gain
from llmb.records.draws import Draws
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import Shape
from llmb.reference.train_loop import Step, train_loop
from llmb.workloads import Workload

#: A distance from which on two trainings are taken to have parted.
PARTED = 0.1


def gradients(workload: Workload, seed: int, gain: float, rates: Sequence[float]) -> list[Tensor]:
    """Return a sample of each step's gradients, of a training with a rate for each step."""
    shape = workload.shape
    model = build(shape, seed, torch.bfloat16, values=partial(first_value, shape, seed, gain))
    recipe, found = workload.recipe, list[Tensor]()
    optimizer = build_optimizer(model.parameters(), recipe.optimizer, foreach=True)

    def batches(number: int) -> list[Batch]:
        return [make_batch(1000 * seed + number, 1, shape)]

    def pause(step: Step, loss: Tensor) -> bool:
        for group in optimizer.param_groups:
            group["lr"] = rates[step.index]
        found.append(sample(model))
        return False

    stream = [Step(index, index, fence=False) for index in range(len(rates))]
    clip = recipe.clip_grad_norm
    for _ in train_loop(model, optimizer, stream, batches, pause, clip_grad_norm=clip):
        pass
    return found


def distances(
    workload: Workload, seed: int, gain: float, rates: Sequence[float]
) -> Iterator[float]:
    """Yield how far two honest trainings are apart in each step."""
    with products(explicit=False):
        right = gradients(workload, seed, gain, rates)
    with products(explicit=True):
        other = gradients(workload, seed, gain, rates)
    for a, b in zip(other, right, strict=True):
        yield float((a - b).norm() / b.norm())


def smaller(shape: Shape, words: int, length: int, layers: int | None) -> Shape:
    """Return ``shape`` with fewer words and shorter sequences, and without dropout."""
    changes: dict[str, object] = {"vocab_size": words, "sequence_length": length}
    if layers is not None:
        changes["num_hidden_layers"] = layers
    if hasattr(shape, "dropout"):
        changes["dropout"] = 0.0
    return replace(shape, **changes)  # type: ignore[arg-type]


def main() -> None:
    """Print a line for each workload and seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="+")
    parser.add_argument("--rate", type=float, help="constant, from plain weights")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.workloads:
        found = workloads.find(name, {})
        shape = smaller(found.shape, given.words, given.length, given.layers)
        workload = replace(found, shape=shape)
        for seed in given.seeds:
            gain = 1.0
            rates = [given.rate] * given.steps
            if given.rate is None:
                gain = start_gain(shape)
                drawn = Draws(f"{seed:032x}", workload.recipe.optimizer, ledger=True)
                rates = [drawn.rate(step) for step in range(given.steps)]
            far = [*distances(workload, seed, gain, rates)]
            parted = next((step for step, one in enumerate(far) if one > PARTED), "none")
            told = " ".join(f"{one:.3f}" for one in far)
            print(
                f"{name}, {shape.num_hidden_layers} layers of {shape.hidden_size}, seed {seed}: "
                f"first step beyond {PARTED:g}: {parted}; {told}",
                flush=True,
            )


if __name__ == "__main__":
    main()
