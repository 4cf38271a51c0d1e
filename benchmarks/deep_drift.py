"""How far apart are two honest BF16 runs of twelve layers, and copies of weights that are late?

Two runs of one model on the same fresh random tokens: one with torch's attention, one with it
spelled out. Or (``--late``) an honest run and one whose products read copies of the weights that
are one step late. Printed is the distance of all gradients of the first 20, 40, ... steps, in
honest errors of one step: rule L1 allows 3, or as much as is printed first. L1 leaves out the
twentieth of the steps that is furthest off, so the last distance is printed without those, too.

Products are computed in FP32 and rounded to BF16 once, as a processor with BF16 instructions does:
on one without them torch's own BF16 takes thirty times longer. ``--gain`` and ``--largest`` are for
comparison: the gain of the last norm, and the rate up to which rates are drawn.

    python benchmarks/deep_drift.py
    python benchmarks/deep_drift.py --gain 1 --largest 1e-3 --seeds 4 6
    python benchmarks/deep_drift.py --late all --steps 20
    python benchmarks/deep_drift.py --late layers.5.mlp.up_proj --steps 20
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llmb.audit.honest_error import drift
from llmb.audit.step_by_step import LEFT_OUT
from llmb.families import family_of
from llmb.inputs.start import start_gain
from llmb.records import draws
from llmb.records.draws import Draws
from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build, initial_value
from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import OFFICIAL_OPTIMIZER
from llmb.reference.shapes import LlamaShape, Shape
from llmb.reference.train_loop import Step, train_loop

#: Elements of each gradient that are compared.
_ELEMENTS = 2048
_sdpa = F.scaled_dot_product_attention


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    bias = None if module.bias is None else module.bias.float()
    return F.linear(x.float(), module.weight.float(), bias).bfloat16()


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    **_: Any,
) -> Tensor:
    return _sdpa(q.float(), k.float(), v.float(), mask, is_causal=is_causal).bfloat16()


def _explicit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    **_: Any,
) -> Tensor:
    scores = (q.float() @ k.float().transpose(-1, -2)).bfloat16() * q.shape[-1] ** -0.5
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = F.softmax(scores.float(), -1).bfloat16()
    return (weights.float() @ v.float()).bfloat16()


@contextmanager
def products(*, explicit: bool) -> Iterator[None]:
    """Let products of a model be computed in FP32 and rounded."""
    attention = _explicit if explicit else _attention
    with (
        patch.object(nn.Linear, "forward", _linear),
        patch.object(F, "scaled_dot_product_attention", attention),
    ):
        yield


def first_value(shape: Shape, seed: int, gain: float, name: str, size: Any) -> Tensor:
    """Return the first value of a parameter: with gains of ``gain`` in the norm before the head."""
    if name != family_of(shape).last_norm:
        return initial_value(name, size, seed, shape)
    drawn = initial_value(name, torch.Size((1, *size)), seed, shape)[0]
    return drawn.sign() * gain if gain > 1 else torch.ones(size)


class Late:
    """A layer's product with a copy of its weights, which is refreshed one step late."""

    def __init__(self, module: nn.Linear) -> None:
        """Take the place of the module's ``forward``."""
        self._module = module
        self._copy = module.weight.detach().clone()
        module.forward = self.forward  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        """Multiply with the copy; the gradient is that of the live weights."""
        weight = self._module.weight
        copy = self._copy + (weight - weight.detach())
        return F.linear(x.float(), copy.float()).bfloat16()

    def refresh(self) -> None:
        """Copy the weights as they are before a step is made."""
        self._copy = self._module.weight.detach().clone()


class Training:
    """One training, step by step."""

    def __init__(self, shape: LlamaShape, seed: int, gain: float, rates: Sequence[float]) -> None:
        """Train a model of ``shape`` with a rate for each step."""
        self._shape, self._seed, self._gain, self._rates = shape, seed, gain, rates

    def _value(self, name: str, size: Any) -> Tensor:
        return first_value(self._shape, self._seed, self._gain, name, size)

    def _batches(self, seed: int) -> list[Batch]:
        return [make_batch(1000 * self._seed + seed, 1, self._shape)]

    def gradients(self, late: str | None = None) -> list[Tensor]:
        """Return each step's gradients, of each parameter a sample that stands for all of it.

        ``late``: the layers whose name ends so read late copies; "all" of them.
        """
        model = build(self._shape, self._seed, torch.bfloat16, values=self._value)
        named = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        copies = [Late(m) for n, m in named if late and (late == "all" or n.endswith(late))]
        optimizer = build_optimizer(model.parameters(), OFFICIAL_OPTIMIZER, foreach=True)
        found: list[Tensor] = []

        def pause(step: Step, loss: Tensor) -> bool:
            for group in optimizer.param_groups:
                group["lr"] = self._rates[step.index]
            found.append(sample(model))
            for copy in copies:
                copy.refresh()
            return False

        stream = [Step(index, index, fence=False) for index in range(len(self._rates))]
        for _ in train_loop(model, optimizer, stream, self._batches, pause):
            pass
        return found

    def wide(self) -> Tensor:
        """Return the first step's gradients from the same weights, computed in FP32."""
        model = build(self._shape, self._seed, torch.bfloat16, values=self._value).float()
        (batch,) = self._batches(0)
        model(batch.ids, labels=batch.labels).backward()
        return sample(model)


def sample(model: nn.Module) -> Tensor:
    """Return a sample of all gradients, in float64, as long as they are."""
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        every = parameter.grad.flatten()
        some = every[:: max(1, len(every) // _ELEMENTS)].double()
        found.append(some * (len(every) / len(some)) ** 0.5)
    return torch.cat(found)


def apart(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return the relative distance of the gradients of all steps together."""
    one, other = torch.cat([*some]), torch.cat([*others])
    return float((one - other).norm() / other.norm())


def main() -> None:
    """Print a line for each seed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    sizes = {"width": 400, "layers": 12, "words": 8000, "length": 64, "steps": 80}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--gain", type=float)
    parser.add_argument("--largest", type=float, default=draws.LARGEST_RATE)
    parser.add_argument("--late", metavar="NAME", help='the end of layers\' names, or "all"')
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = LlamaShape(
        vocab_size=given.words,
        hidden_size=given.width,
        intermediate_size=2 * given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        sequence_length=given.length,
    )
    gain = start_gain(shape) if given.gain is None else given.gain
    marks = range(20, given.steps + 1, 20)
    print(f"of {given.layers} layers rule L1 allows at least {drift(given.layers):.4f}")
    print(f"gain {gain:g}, rates up to {given.largest:g}: honest errors after {[*marks]} steps")
    for seed in given.seeds:
        with patch.object(draws, "LARGEST_RATE", given.largest):
            drawn = Draws(f"{seed:032x}", OFFICIAL_OPTIMIZER, ledger=True)
            rates = [drawn.rate(step) for step in range(given.steps)]
        training = Training(shape, seed, gain, rates)
        with products(explicit=False):
            right = training.gradients()
            other = training.gradients(given.late) if given.late else None
        if other is None:
            with products(explicit=True):
                other = training.gradients()
        honest = apart(right[:1], [training.wide()])
        far = [apart(other[:n], right[:n]) / honest for n in marks]
        steps = sorted(range(given.steps), key=lambda n: apart([other[n]], [right[n]]))
        usual, furthest = steps[: given.steps - int(LEFT_OUT * given.steps)], steps[-1]
        least = apart([other[n] for n in usual], [right[n] for n in usual])
        worst = apart([other[furthest]], [right[furthest]])
        told = ", ".join(f"{one:.2f}" for one in far)
        print(
            f"seed {seed}: {told}; without a twentieth {least / honest:.2f}, or {least:.4f}; "
            f"honest error {honest:.4f}, worst step {worst:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
