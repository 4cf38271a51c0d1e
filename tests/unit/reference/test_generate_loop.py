"""The loop gives every token but the last back to the model, one at a time, and nothing else."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from llmb.reference.cache import KeyValueCache
from llmb.reference.data import random_tokens
from llmb.reference.generate import (
    Desk,
    OneToken,
    exponential_race,
    generate_loop,
    make_desk,
    multinomial,
)
from llmb.reference.llama import Llama
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step

PROMPT, NEW = 5, 9


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(dim=-1, keepdim=True)


def steps(*seeds: int) -> list[Step]:
    return [Step(index=i, seed=seed, fence=False) for i, seed in enumerate(seeds)]


def prompt(seed: int) -> Tensor:
    return random_tokens(seed, 2, PROMPT, 97)


@pytest.fixture
def desk(shape: LlamaShape) -> Desk:
    return make_desk(shape, 2, PROMPT, NEW, torch.float32)


def test_the_likeliest_tokens_are_those_of_a_loop_without_a_cache(model: Llama, desk: Desk) -> None:
    (done,) = generate_loop(OneToken(model, greedy), desk, steps(3), prompt)
    ids = prompt(3)
    for _ in range(NEW):
        ids = torch.cat((ids, greedy(model(ids)[:, -1])), dim=1)
    assert torch.equal(done.tokens, ids[:, PROMPT:])


@pytest.mark.parametrize("draw", [exponential_race, multinomial])
def test_the_logits_are_those_that_every_token_was_drawn_from(
    model: Llama, desk: Desk, draw
) -> None:
    (done,) = generate_loop(OneToken(model, draw), desk, steps(3), prompt)
    whole = model(torch.cat((prompt(3), done.tokens), dim=1))
    torch.testing.assert_close(
        desk.logits.transpose(0, 1), whole[:, PROMPT - 1 : -1], rtol=1e-4, atol=1e-4
    )


def test_a_generation_follows_from_its_seed_and_from_no_other_generation(
    model: Llama, desk: Desk
) -> None:
    next_token = OneToken(model, exponential_race)
    first, other, again = generate_loop(next_token, desk, steps(3, 4, 3), prompt)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    (same_prompt,) = generate_loop(next_token, desk, steps(4), lambda seed: prompt(3))
    assert not torch.equal(first.tokens, same_prompt.tokens)


class Watched(nn.Module):
    """Says what it is given."""

    def __init__(self, inner: nn.Module, seen: list[str]) -> None:
        super().__init__()
        self.inner, self.seen = inner, seen
        self.drawn: list[Tensor] = []

    def forward(self, ids: Tensor, positions: Tensor, cache: KeyValueCache):
        if self.drawn:
            assert ids.shape == (2, PROMPT) or torch.equal(ids, self.drawn[-1])
        self.seen.append(f"model {positions.tolist()}")
        token, logits = self.inner(ids, positions, cache)
        self.drawn.append(token)
        return token, logits


def test_calls_come_in_their_order(model: Llama, shape: LlamaShape) -> None:
    seen: list[str] = []
    watched = Watched(OneToken(model, exponential_race), seen)
    desk = make_desk(shape, 2, PROMPT, 3, torch.float32)

    def pause(step: Step, tokens: Tensor, logits: Tensor) -> bool:
        assert tokens.shape == (2, 3)
        assert logits is desk.logits
        seen.append(f"pause {step.index}")
        return step.index == 1

    done = list(
        generate_loop(
            watched,
            desk,
            steps(3, 4, 5),
            prompt,
            pause,
            prefilled=lambda: seen.append("prefilled"),
            token_end=lambda: seen.append("token"),
        )
    )
    step = ["model [0, 1, 2, 3, 4]", "token", "prefilled", "model [5]", "token", "model [6]"]
    assert seen == [*step, "token", "pause 0", *step, "token", "pause 1"]
    assert [one.step.index for one in done] == [0]  # that of the pause which ended it is not done


def test_a_single_new_token_is_that_of_the_prompt_alone(model: Llama, shape: LlamaShape) -> None:
    seen: list[str] = []
    watched = Watched(OneToken(model, greedy), seen)
    (done,) = generate_loop(
        watched, make_desk(shape, 2, PROMPT, 1, torch.float32), steps(3), prompt
    )
    assert len(seen) == 1
    assert torch.equal(done.tokens, greedy(model(prompt(3))[:, -1]))


def test_the_memory_stays_where_it_is_and_whoever_drives_the_loop_is_in_no_mode(
    model: Llama, desk: Desk
) -> None:
    tensors = (*desk.cache.tensors(), desk.position, desk.prompt_positions, desk.logits)
    before = [tensor.data_ptr() for tensor in tensors]
    modes = []

    def look() -> None:
        modes.append(torch.is_inference_mode_enabled() or not torch.is_grad_enabled())

    loop = generate_loop(
        OneToken(model, exponential_race),
        desk,
        steps(3, 4),
        lambda seed: (look(), prompt(seed))[1],
        lambda *_: look() or False,
        prefilled=look,
        token_end=look,
    )
    for _ in loop:
        look()
    assert len(modes) == 2 * (NEW + 4)
    assert not any(modes)
    assert [tensor.data_ptr() for tensor in tensors] == before


def test_a_context_surrounds_every_call_of_the_model(model: Llama, shape: LlamaShape) -> None:
    desk = make_desk(shape, 2, PROMPT, 3, torch.bfloat16)
    dtypes = []
    hook = model.register_forward_hook(lambda module, given, logits: dtypes.append(logits.dtype))
    next_token = OneToken(model, exponential_race)
    autocast = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    list(generate_loop(next_token, desk, steps(3), prompt, context=autocast))
    hook.remove()
    assert dtypes == 3 * [torch.bfloat16]


def test_the_parameters_are_not_touched(model: Llama, desk: Desk) -> None:
    before = [parameter.clone() for parameter in model.parameters()]
    list(
        itertools.islice(
            generate_loop(OneToken(model, exponential_race), desk, steps(3, 4), prompt), 2
        )
    )
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())
