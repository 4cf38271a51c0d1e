"""The forward loop computes the logits of each batch, in inference mode, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.reference.data import Batch, make_batch
from llmb.reference.forward import forward_loop
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import BertShape, LlamaShape
from llmb.reference.train_loop import Step

STEPS = [Step(index=i, seed=100 + i, fence=False) for i in range(3)]


def test_every_step_gives_the_logits_of_its_own_tokens(model: Llama, shape: LlamaShape) -> None:
    done = list(forward_loop(model, STEPS, lambda seed: [make_batch(seed, 3, shape)]))
    assert [one.step for one in done] == STEPS
    for one in done:
        expected = model(make_batch(one.step.seed, 3, shape).ids)
        assert torch.equal(one.logits, expected)
        assert not one.logits.requires_grad


def test_of_several_batches_all_are_computed_and_the_last_is_shown(
    model: Llama, shape: LlamaShape
) -> None:
    calls = []
    model.register_forward_hook(lambda module, given, logits: calls.append(given[0]))
    whole = make_batch(100, 4, shape)
    (done,) = forward_loop(model, STEPS[:1], lambda seed: whole.split(2))
    assert torch.equal(torch.cat(calls), whole.ids)
    assert torch.equal(done.logits, model(whole.ids[2:]))


def test_a_pause_sees_the_logits_outside_of_inference_mode_and_can_end_the_loop(
    model: Llama, shape: LlamaShape
) -> None:
    seen: list[tuple[int, torch.Size, bool]] = []

    def pause(step: Step, logits: Tensor) -> bool:
        seen.append((step.index, logits.shape, torch.is_inference_mode_enabled()))
        return step.index == 1

    done = list(forward_loop(model, STEPS, lambda seed: [make_batch(seed, 3, shape)], pause))
    assert [one.step.index for one in done] == [0]
    assert seen == [(0, (3, 16, 97), False), (1, (3, 16, 97), False)]


def test_what_else_a_batch_holds_is_given_to_the_model() -> None:
    shape = BertShape(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        sequence_length=16,
        max_position_embeddings=32,
        dropout=0.0,
    )
    model, batch = build(shape, seed=1, dtype=torch.float32), make_batch(7, 2, shape)
    (done,) = forward_loop(model, STEPS[:1], lambda seed: [batch])
    assert torch.equal(done.logits, model(batch.ids, **batch.extra))
    types = torch.zeros_like(batch.extra["token_type_ids"])
    assert not torch.equal(done.logits, model(batch.ids, token_type_ids=types))


def test_a_context_surrounds_the_pass(model: Llama, shape: LlamaShape) -> None:
    def batches(seed: int) -> list[Batch]:
        assert not torch.is_autocast_enabled("cpu")
        return [make_batch(seed, 3, shape)]

    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    (done,) = forward_loop(model, STEPS[:1], batches, context=autocast)
    assert done.logits.dtype == torch.bfloat16
