"""The loop does what a loop written by hand does, one step per request and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from llmb.reference.data import Batch, make_batch
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, train_loop

STEPS = [Step(index=i, seed=100 + i, fence=i == 2) for i in range(3)]


@pytest.fixture
def batch(shape: LlamaShape) -> Callable[[int], list[Batch]]:
    return lambda seed: [make_batch(seed, 3, shape)]


def test_three_steps_equal_a_hand_written_loop_bit_for_bit(
    shape: LlamaShape, model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    done = list(train_loop(model, build_optimizer(model.parameters()), STEPS, batch))

    by_hand = build(shape, seed=1, dtype=torch.float32)
    optimizer = build_optimizer(by_hand.parameters())
    losses = []
    for seed in (100, 101, 102):
        (drawn,) = batch(seed)
        loss = by_hand(drawn.ids, labels=drawn.labels)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        for parameter in by_hand.parameters():
            parameter.grad = None

    assert [step.loss.item() for step in done] == losses
    trained = dict(model.named_parameters())
    start = dict(build(shape, seed=1, dtype=torch.float32).named_parameters())
    for name, parameter in by_hand.named_parameters():
        assert torch.equal(trained[name], parameter), name
        assert not torch.equal(trained[name], start[name]), name


def test_after_each_step_every_gradient_is_none_and_the_loss_holds_no_graph(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    for done in train_loop(model, build_optimizer(model.parameters()), STEPS, batch):
        assert all(parameter.grad is None for parameter in model.parameters())
        assert done.loss.shape == ()
        assert not done.loss.requires_grad


def test_gradients_that_came_with_the_model_do_not_count(
    shape: LlamaShape, model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    other = build(shape, seed=1, dtype=torch.float32)
    for one in (model, other):
        list(train_loop(one, build_optimizer(one.parameters()), STEPS[:1], batch))
    fresh = dict(other.named_parameters())
    assert all(torch.equal(parameter, fresh[name]) for name, parameter in model.named_parameters())


def test_each_step_is_handed_back_as_it_came_in_order(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    done = train_loop(model, build_optimizer(model.parameters()), STEPS, batch)
    assert [each.step for each in done] == STEPS


def test_the_next_step_is_pulled_only_when_asked_for(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    pulled: list[int] = []

    def stream() -> Iterator[Step]:
        for step in STEPS:
            pulled.append(step.index)
            yield step

    running = train_loop(model, build_optimizer(model.parameters()), stream(), batch)
    assert pulled == []
    for count in (1, 2, 3):
        next(running)
        assert pulled == list(range(count))


def test_each_step_draws_one_batch_and_calls_forward_and_the_optimizer_once(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    calls: list[str] = []
    optimizer = build_optimizer(model.parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append("optimizer"))
    model.register_forward_hook(lambda *_: calls.append("forward"))

    def counted(seed: int) -> list[Batch]:
        calls.append(f"batch {seed}")
        return batch(seed)

    running = train_loop(model, optimizer, STEPS, counted)
    for step in STEPS:
        calls.clear()
        next(running)
        assert calls == [f"batch {step.seed}", "forward", "optimizer"]


def test_no_steps_leave_the_model_as_it_was(
    shape: LlamaShape, model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    assert list(train_loop(model, build_optimizer(model.parameters()), [], batch)) == []
    fresh = dict(build(shape, seed=1, dtype=torch.float32).named_parameters())
    assert all(torch.equal(parameter, fresh[name]) for name, parameter in model.named_parameters())


# -- the pause ------------------------------------------------------------------------------


def test_every_step_pauses_once_with_its_gradients_there_and_its_weights_as_they_were(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    optimizer = build_optimizer(model.parameters())
    calls: list[tuple[Step, float]] = []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def pause(step: Step, loss: Tensor) -> bool:
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
        assert not loss.requires_grad
        calls.append((step, loss.item()))
        return False

    losses = []
    for done in train_loop(model, optimizer, STEPS, batch, pause):
        losses.append(done.loss.item())
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert calls == list(zip(STEPS, losses, strict=True))


def test_a_pause_changes_nothing_of_what_is_computed(
    shape: LlamaShape, model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    paused = train_loop(
        model, build_optimizer(model.parameters()), STEPS, batch, lambda step, loss: False
    )
    other = build(shape, seed=1, dtype=torch.float32)
    plain = train_loop(other, build_optimizer(other.parameters()), STEPS, batch)
    for one, two in zip(paused, plain, strict=True):
        assert one.loss == two.loss
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("last", [0, 1])
def test_a_pause_that_says_so_is_where_the_loop_ends_gradients_there_and_no_update_made(
    model: Llama, batch: Callable[[int], list[Batch]], last: int
) -> None:
    stepped: list[int] = []
    optimizer = build_optimizer(model.parameters())
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    pulled: list[int] = []

    def stream() -> Iterator[Step]:
        for step in STEPS:
            pulled.append(step.index)
            yield step

    running = train_loop(model, optimizer, stream(), batch, lambda step, loss: step.index == last)
    assert [done.step.index for done in running] == list(range(last))
    assert len(stepped) == last
    assert pulled == list(range(last + 1))
    assert all(parameter.grad is not None for parameter in model.parameters())


# -- accumulation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 4])
def test_gradients_accumulated_over_parts_are_those_of_the_whole_batch(
    shape: LlamaShape, parts: int
) -> None:
    seen = []
    for count in (1, parts):
        model = build(shape, seed=1, dtype=torch.float64)
        optimizer = build_optimizer(model.parameters())
        gradients: list[torch.Tensor] = []

        def pause(step: Step, loss: Tensor, model=model, gradients=gradients) -> bool:
            gradients += [p.grad.clone() for p in model.parameters()]
            return False

        def split(seed: int, count: int = count) -> list[Batch]:
            return make_batch(seed, 4, shape).split(count)

        (done,) = train_loop(model, optimizer, STEPS[:1], split, pause)
        seen.append((done.loss, gradients))
    (whole, right), (summed, found) = seen
    assert torch.allclose(summed, whole, rtol=1e-12)
    for one, other in zip(right, found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-15)


def test_a_step_of_parts_pauses_and_steps_once(model: Llama, shape: LlamaShape) -> None:
    calls: list[str] = []
    optimizer = build_optimizer(model.parameters())
    optimizer.register_step_post_hook(lambda *_: calls.append("optimizer"))
    model.register_forward_hook(lambda *_: calls.append("forward"))
    paused = train_loop(
        *(model, optimizer, STEPS[:1], lambda seed: make_batch(seed, 4, shape).split(2)),
        lambda step, loss: bool(calls.append("pause")),
    )
    next(paused)
    assert calls == ["forward", "forward", "pause", "optimizer"]


# -- clipping and autocast ------------------------------------------------------------------------


def test_gradients_are_clipped_to_their_norm_after_the_pause_and_before_the_step(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    norms: list[float] = []

    def norm() -> float:
        return float(torch.stack([p.grad.norm() for p in model.parameters()]).norm())

    optimizer = build_optimizer(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: norms.append(norm()))
    loop = train_loop(
        *(model, optimizer, STEPS[:1], batch, lambda step, loss: bool(norms.append(norm()))),
        clip_grad_norm=0.01,
        clipped=lambda: norms.append(-1.0),
    )
    next(loop)
    before, called, after = norms
    assert before > 0.1
    assert called == -1.0
    assert after == pytest.approx(0.01, rel=1e-3)


def test_forward_passes_run_in_the_context_and_backward_passes_do_not(
    model: Llama, batch: Callable[[int], list[Batch]]
) -> None:
    seen: list[tuple[str, bool]] = []
    model.register_forward_hook(
        lambda *_: seen.append(("forward", torch.is_autocast_enabled("cpu")))
    )
    model.lm_head.weight.register_hook(
        lambda grad: seen.append(("backward", torch.is_autocast_enabled("cpu")))
    )
    context = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    (done,) = train_loop(
        model, build_optimizer(model.parameters()), STEPS[:1], batch, context=context
    )
    assert seen == [("forward", True), ("backward", False)]
    assert all(p.dtype is torch.float32 for p in model.parameters())
    assert done.loss.isfinite()
