"""The data: uniformly random tokens, fresh for every step and a function of its seed only."""

from __future__ import annotations

import torch
from torch import Tensor


def random_tokens(seed: int, batch_size: int, sequence_length: int, vocab_size: int) -> Tensor:
    """Return int64 token ids ``[batch_size, sequence_length]`` on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (batch_size, sequence_length), generator=generator)
