"""The data: uniformly random tokens, fresh for every step and a function of its seed only."""

from __future__ import annotations

from collections.abc import Mapping
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
        """Return the batch on ``device``; where the labels are the ids, they stay the same."""
        ids = self.ids.to(device, non_blocking=True)
        labels = ids if self.labels is self.ids else self.labels.to(device, non_blocking=True)
        extra = {name: value.to(device, non_blocking=True) for name, value in self.extra.items()}
        return Batch(ids, labels, extra)


def random_tokens(seed: int, batch_size: int, sequence_length: int, vocab_size: int) -> Tensor:
    """Return int64 token ids ``[batch_size, sequence_length]`` on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (batch_size, sequence_length), generator=generator)


def make_batch(seed: int, batch_size: int, shape: Shape) -> Batch:
    """Return ``batch_size`` sequences for the model of ``shape``, on the CPU."""
    ids = random_tokens(seed, batch_size, shape.sequence_length, shape.vocab_size)
    return _masked(seed, ids, shape) if isinstance(shape, BertShape) else Batch(ids, ids)


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
