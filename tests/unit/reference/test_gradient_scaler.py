"""Scaled gradients are those of the loss itself; a step whose gradients overflow is left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler

from llmb.reference.data import Batch, make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, train_loop

STEPS = [Step(index=i, seed=100 + i, fence=False) for i in range(3)]


@pytest.fixture
def batch(shape: LlamaShape) -> Callable[[int], list[Batch]]:
    return lambda seed: [make_batch(seed, 3, shape)]


def trained(
    shape: LlamaShape,
    batch: Callable[[int], list[Batch]],
    scaler: GradScaler | None,
    steps: int = 1,
    clip: float | None = None,
    spoil: int | None = None,
) -> tuple[list[list[Tensor]], list[list[Tensor]], list[float]]:
    """Return gradients in each pause, weights after each step, and losses.

    ``spoil``: the step whose gradients overflow in the backward pass.
    """
    model = build(shape, seed=1, dtype=torch.float32)
    optimizer = build_optimizer(model.parameters())
    gradients: list[list[Tensor]] = []
    index = [0]
    if spoil is not None:
        model.lm_head.weight.register_hook(
            lambda grad: grad * float("inf") if index[0] == spoil else grad
        )

    def pause(step: Step, loss: Tensor) -> bool:
        gradients.append([p.grad.clone() for p in model.parameters()])
        index[0] += 1
        return False

    weights, losses = [[p.detach().clone() for p in model.parameters()]], []
    context = lambda: torch.autocast("cpu", torch.float16)  # noqa: E731
    for done in train_loop(
        *(model, optimizer, STEPS[:steps], batch, pause),
        context=context,
        scaler=scaler,
        clip_grad_norm=clip,
    ):
        losses.append(float(done.loss))
        weights.append([p.detach().clone() for p in model.parameters()])
    return gradients, weights, losses


def scaler_of(scale: float = 2.0**10) -> GradScaler:
    return GradScaler("cpu", init_scale=scale, growth_interval=2**31 - 1)


def test_gradients_are_scaled_back_before_the_pause_and_the_loss_is_the_plain_one(
    shape: LlamaShape, batch: Callable[[int], list[Batch]]
) -> None:
    (plain,), _, plain_losses = trained(shape, batch, None)
    (scaled,), _, losses = trained(shape, batch, scaler_of())
    assert losses == plain_losses
    for one, other in zip(plain, scaled, strict=True):
        assert float((one - other).norm()) <= 5e-3 * float(one.norm())


def test_an_overflow_leaves_the_step_out_and_the_next_one_is_made_with_half_the_scale(
    shape: LlamaShape, batch: Callable[[int], list[Batch]]
) -> None:
    scaler = scaler_of()
    gradients, (start, first, second, third), losses = trained(
        shape, batch, scaler, steps=3, spoil=1
    )
    assert not all(torch.isfinite(g).all() for g in gradients[1])
    assert all(map(torch.equal, first, second)), "nothing moves in the step that overflowed"
    assert not any(map(torch.equal, start, first))
    assert not any(map(torch.equal, second, third))
    assert all(torch.isfinite(w).all() for w in third)
    assert len(losses) == 3
    assert scaler.get_scale() == 2.0**9


def test_a_step_that_overflows_where_gradients_are_clipped_changes_nothing_either(
    shape: LlamaShape, batch: Callable[[int], list[Batch]]
) -> None:
    _, (_, first, second, third), _ = trained(shape, batch, scaler_of(), steps=3, clip=1.0, spoil=1)
    assert all(map(torch.equal, first, second))
    assert all(torch.isfinite(w).all() for w in third)


def test_a_loss_too_large_to_be_scaled_moves_no_weight(
    shape: LlamaShape, batch: Callable[[int], list[Batch]]
) -> None:
    scaler = scaler_of(2.0**125)  # the loss is about 4.6, and the largest float32 2**128
    _, (start, first, _, _), _ = trained(shape, batch, scaler, steps=3)
    assert all(map(torch.equal, start, first))
    assert scaler.get_scale() == 2.0**122
