"""How far an honest FP16 step is from the FP32 reference, by the batch whose mean loss is trained.

Without a loss scale every token's gradient is divided by the tokens of the step, so float16 rounds
it away: 2^-24 is its smallest number. One line a batch size: the relative error of all gradients
together (what the audit's limit of 0.25 is for), the share of gradients that are zero, and the
share of AdamW's second moments that are zero after the first step.

    python benchmarks/fp16_batch.py                                  # llama-45m, minutes
    python benchmarks/fp16_batch.py --scaled 128                     # with the loss scaled, too
    python benchmarks/fp16_batch.py --workload llama-1.4b --sequences 1   # one of B sequences

With ``--sequences N`` only N of the B sequences are computed, each with the gradient that it has
among B. A weight's gradient is then a sum over fewer tokens and rounds worse, by at most the root
of B / N where everything underflows: an upper bound.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch
from torch import Tensor

from llmb import workloads
from llmb.audit.distance import gaps, total
from llmb.config import RunRequest
from llmb.observe.passes import Numerics, Sketches, plain_pass
from llmb.observe.sketch import side_for
from llmb.observe.wide_products import WideProducts
from llmb.reference.data import make_batch
from llmb.reference.models import build
from llmb.reference.shapes import Shape

#: AdamW's 1 - beta2: what a square of a gradient is multiplied by in the first step.
_SECOND = 0.001


class _Counted:
    """Sketches gradients, and counts those that are zero, and the second moments that are."""

    def __init__(self, sketches: Sketches) -> None:
        self.sketches, self.all, self.zero, self.no_moment = sketches, 0, 0, 0

    def add(self, parameter: str, gradient: Tensor) -> None:
        """Take one parameter's gradient, or a part of it."""
        self.sketches.add(parameter, gradient)
        self.all += gradient.numel()
        self.zero += int((gradient == 0).sum())
        self.no_moment += int((gradient * gradient * _SECOND == 0).sum())


def _pass(
    weights: dict[str, Tensor], shape: Shape, dtype: torch.dtype, given: argparse.Namespace, n: int
) -> tuple[dict[str, list[float]], _Counted]:
    """Return the sketches of one pass over ``n`` sequences of a step, as they are in that step."""
    computed = min(n, given.sequences or n)
    batch = make_batch(given.seed + n, computed, shape)
    found = _Counted(Sketches("live", given.seed, shape, side_for(len(weights))))
    copies = given.scale * computed / n
    pieces = max(1, computed // given.at_once)
    wide = WideProducts() if dtype is torch.float16 else nullcontext()  # type: ignore[no-untyped-call]
    numerics = Numerics(dtype, "cpu")
    with wide:
        plain_pass(weights.__getitem__, shape, batch, numerics, found, parts=pieces, copies=copies)
    # plain_pass takes copies out again where there are several; a share of one stays.
    left = copies if copies < 1 else 1.0
    shown = {
        name: (value / left).flatten().tolist() for name, value in found.sketches.tensors.items()
    }
    return shown, found


def _override(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    return name, int(value)


def main() -> None:
    """Print one line a batch size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workload", default="llama-45m")
    parser.add_argument(
        "--shape", type=_override, action="append", default=[], help="such as hidden_size=200"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[2**n for n in range(9)])
    parser.add_argument("--sequences", type=int, help="of a batch, that are computed [all]")
    parser.add_argument("--at-once", type=int, default=64, help="sequences in one piece")
    parser.add_argument("--scale", type=float, default=1.0, help="of the loss")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    request = RunRequest(workload=given.workload, shape_overrides=dict(given.shape))
    shape = workloads.of(request).shape
    model = build(shape, given.seed, torch.float16)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    elements = sum(w.numel() for w in weights.values())
    print("batch   tokens    error    worst    rough  zero gradients  zero second moments  seconds")
    for n in given.batches:
        began = time.perf_counter()
        right, _ = _pass(weights, shape, torch.float32, given, n)
        shown, counted = _pass(weights, shape, torch.float16, given, n)
        apart = gaps(shown, right, "live/")
        worst = max(apart.values(), key=lambda one: one.error)
        rough = sum(weights[name].numel() for name, one in apart.items() if one.error > 0.125)
        print(
            f"{n:5} {n * shape.sequence_length:8,} {total(apart.values()).error:8.4f} "
            f"{worst.error:8.4f} {rough / elements:8.1%} "
            f"{counted.zero / counted.all:15.1%} "
            f"{counted.no_moment / counted.all:20.2%} {time.perf_counter() - began:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
