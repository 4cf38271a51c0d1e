"""The generate loop: a prompt at once, then one token after another, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from .cache import KeyValueCache, empty_cache
from .shapes import Shape
from .train_loop import Step

#: Draws one token ``[B, 1]``, int64, of each row of logits ``[B, vocab]``.
Draw = Callable[[Tensor], Tensor]


def probabilities(logits: Tensor) -> Tensor:
    """Return the softmax of the last dimension at temperature 1, in float32 or wider."""
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return logits.to(wide).softmax(dim=-1)


def exponential_race(logits: Tensor) -> Tensor:
    """Draw by the exponential race: ``argmax(p / e)`` with ``e`` from Exp(1) is distributed as p.

    Of independent waiting times e / p the shortest belongs to i with probability p_i. Nothing is
    read back, so that an executor can compile it together with the model.
    """
    p = probabilities(logits)
    return (p / torch.empty_like(p).exponential_(1.0)).argmax(dim=-1, keepdim=True)


def multinomial(logits: Tensor) -> Tensor:
    """Draw by ``torch.multinomial``, which on an accelerator waits for the device."""
    return torch.multinomial(probabilities(logits), num_samples=1)


class NextToken(Protocol):
    """What is run for each token: the prompt's pass, and every pass after it."""

    def __call__(
        self, ids: Tensor, positions: Tensor, cache: KeyValueCache
    ) -> tuple[Tensor, Tensor]:
        """Return a token ``[B, 1]`` to follow ``ids`` ``[B, n]``, and the logits of its draw."""


class OneToken(nn.Module):
    """The step of one token: the model, then the draw.

    Compiled as a whole, or around a compiled model.
    """

    def __init__(self, model: Callable[..., Tensor], draw: Draw) -> None:
        super().__init__()
        self.model = model
        self.draw = draw

    def forward(
        self, ids: Tensor, positions: Tensor, cache: KeyValueCache
    ) -> tuple[Tensor, Tensor]:
        """Return a token ``[B, 1]`` to follow ``ids`` ``[B, n]``, and the logits of its draw."""
        logits = self.model(ids, cache=cache, positions=positions)
        return self.draw(logits), logits


@dataclass(frozen=True)
class Desk:
    """The memory that all generations of a run share; its addresses never change."""

    cache: KeyValueCache
    #: Where the prompt's tokens stand, int64 ``[prompt]``.
    prompt_positions: Tensor
    #: Where the token stands that the model is given, int64 ``[1]``.
    position: Tensor
    #: What every token was drawn from, ``[new_tokens, B, vocab]``, in the model's dtype.
    logits: Tensor


def make_desk(
    shape: Shape,
    batch_size: int,
    prompt_length: int,
    new_tokens: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Desk:
    """Return the memory for ``new_tokens`` after a prompt; the cache is as long as both."""
    length = prompt_length + new_tokens
    size = (new_tokens, batch_size, shape.vocab_size)
    return Desk(
        cache=empty_cache(shape, batch_size, length, dtype, device),
        prompt_positions=torch.arange(prompt_length, device=device),
        position=torch.zeros(1, dtype=torch.int64, device=device),
        logits=torch.empty(size, dtype=dtype, device=device),
    )


@dataclass(frozen=True)
class GenerationDone:
    """A generation whose work has been enqueued, and its tokens ``[B, new_tokens]``."""

    step: Step
    tokens: Tensor


def _never(step: Step, tokens: Tensor, logits: Tensor) -> bool:
    return False


def _nothing() -> None:
    pass


def generate_loop(
    next_token: NextToken,
    desk: Desk,
    steps: Iterable[Step],
    prompt: Callable[[int], Tensor],
    pause: Callable[[Step, Tensor, Tensor], bool] = _never,
    *,
    prefilled: Callable[[], None] = _nothing,
    token_end: Callable[[], None] = _nothing,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[GenerationDone]:
    """Generate once per entry of ``steps``, after ``prompt(seed)`` ``[B, n]``; yield after each.

    ``next_token`` is given the prompt on an empty cache, then every token it drew but the last, one
    at a time: nothing ends a generation early, and no token leaves the device. Draws follow from
    the step's seed. Everything runs in inference mode and in ``context()``, such as autocast.

    ``token_end`` is called once each token is enqueued, ``prefilled`` then once for the first of
    them. ``pause`` is called in every step with all tokens ``[B, new_tokens]`` and ``desk.logits``,
    which the next step overwrites, and ends the loop by returning True. Nothing is timed,
    synchronised or read here.
    """
    for step in steps:
        torch.manual_seed(step.seed)
        ids = prompt(step.seed)
        with torch.inference_mode(), context():
            desk.cache.clear()
            drawn = [_one(next_token, desk, 0, ids, desk.prompt_positions)]
        token_end()
        prefilled()
        desk.position.fill_(len(desk.prompt_positions))
        for index in range(1, len(desk.logits)):
            with torch.inference_mode(), context():
                drawn.append(_one(next_token, desk, index, drawn[-1], desk.position))
                desk.position.add_(1)
            token_end()
        tokens = torch.cat(drawn, dim=1)
        if pause(step, tokens, desk.logits):
            return
        yield GenerationDone(step, tokens)


def _one(next_token: NextToken, desk: Desk, index: int, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the token ``[B, 1]`` numbered ``index``, and keep what it was drawn from."""
    token, logits = next_token(ids, positions, desk.cache)
    desk.logits[index].copy_(logits)
    return token.clone()  # a compiled program may reuse the memory of what it returned
