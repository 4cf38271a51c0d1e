"""The data: uniformly random tokens, fresh for every step and a function of its seed only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .loss import IGNORED
from .shapes import BertShape, Shape

#: BERT: of all tokens this share is to be found again; of those most are masked, some are replaced
#: by a random token, and the others stay.
MASKED, BECOMES_MASK, BECOMES_RANDOM = 0.15, 0.8, 0.1


@dataclass(frozen=True)
class Batch:
    """What a model is given: token ids ``[B, T]``, labels ``[B, T]``, and what else it takes."""

    ids: Tensor
    labels: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on ``device``."""
        return self._each(lambda value: value.to(device, non_blocking=True))

    def fill(self, sequence: Batch) -> None:
        """Overwrite every sequence with the one of ``sequence``, in the same memory."""
        self.ids.copy_(sequence.ids.expand_as(self.ids))
        if self.labels is not self.ids:
            self.labels.copy_(sequence.labels.expand_as(self.labels))
        for name, value in self.extra.items():
            value.copy_(sequence.extra[name].expand_as(value))

    def repeat(self, count: int) -> Batch:
        """Return a batch of ``count`` times the one sequence of this."""
        return self._each(lambda value: value.expand(count, *value.shape[1:]))

    def split(self, parts: int) -> list[Batch]:
        """Return ``parts`` batches of equal size that make up this one."""
        size = len(self.ids) // parts
        return [self._each(_rows(i * size, (i + 1) * size)) for i in range(parts)]

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        ids = change(self.ids)
        # Where the labels are the ids, they stay the same object.
        labels = ids if self.labels is self.ids else change(self.labels)
        return Batch(ids, labels, {name: change(value) for name, value in self.extra.items()})


def _rows(first: int, end: int) -> Callable[[Tensor], Tensor]:
    return lambda value: value[first:end]


def random_tokens(seed: int, batch_size: int, sequence_length: int, vocab_size: int) -> Tensor:
    """Return int64 token ids ``[batch_size, sequence_length]`` on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (batch_size, sequence_length), generator=generator)


def make_batch(
    seed: int,
    batch_size: int,
    shape: Shape,
    *,
    tokens: Tensor | None = None,
    lengths: Sequence[int] | None = None,
) -> Batch:
    """Return ``batch_size`` sequences for the model of ``shape``, on the CPU.

    Its tokens are random, or ``tokens`` ``[batch_size, sequence_length]``. With ``lengths`` each
    sequence has so many of them and all are padded to the longest: token 0, no target.
    """
    ids = tokens
    if ids is None:
        ids = random_tokens(seed, batch_size, shape.sequence_length, shape.vocab_size)
    if isinstance(shape, BertShape):
        return _masked(seed, ids, shape)
    return Batch(ids, ids) if lengths is None else _padded(ids, lengths)


def _padded(tokens: Tensor, lengths: Sequence[int]) -> Batch:
    ids = tokens[:, : max(lengths)]
    beyond = torch.arange(ids.shape[1]) >= torch.tensor(lengths)[:, None]
    return Batch(ids.masked_fill(beyond, 0), ids.masked_fill(beyond, IGNORED))


def _masked(seed: int, tokens: Tensor, shape: BertShape) -> Batch:
    """Return ``tokens`` as BERT is trained on them: two sentences each, some tokens masked.

    The last token of the vocabulary stands for the mask. Every sequence has one masked token or
    more, so that the loss is a number; its second sentence begins at a random place.
    """
    generator = torch.Generator().manual_seed(seed ^ 1)
    size, length = tokens.shape
    draw = torch.rand(size, length, generator=generator)
    draw[torch.arange(size), torch.randint(length, (size,), generator=generator)] = 0.0
    chosen = draw < MASKED
    labels = torch.where(chosen, tokens, IGNORED)
    share = draw / MASKED  # uniform again among the chosen
    other = torch.randint(shape.vocab_size, (size, length), generator=generator)
    ids = torch.where(chosen & (share < BECOMES_MASK), shape.vocab_size - 1, tokens)
    ids = torch.where(chosen & (share >= 1 - BECOMES_RANDOM), other, ids)
    begin = torch.randint(1, length, (size, 1), generator=generator)
    types = (torch.arange(length) >= begin).long() % shape.type_vocab_size
    order = torch.randint(2, (size,), generator=generator)
    return Batch(ids, labels, {"token_type_ids": types, "next_sentence_label": order})
