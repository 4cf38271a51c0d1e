"""The noise of mode generate: each word is the argmax of probabilities divided by noise.

The worker fills the noise right before each token's pass, and a plugin cannot choose the noise. An
honest run draws the same noise again, and with the worker's words its own words (rule L1).
"""

from __future__ import annotations

import secrets

import torch
from torch import Tensor, nn

from llmb.records.audited import SEED_PARTS
from llmb.reference.cache import KeyValueCache
from llmb.reference.generate import NextToken, probabilities

#: Bits of a part of a seed (``llmb.records.audited.SEED_PARTS``).
_BITS = 24


class Noise:
    """Independent numbers from Exp(1) ``[B, vocab]``, always at the same address.

    A sample's noise follows from the sample's seed, on the same kind of device.
    """

    def __init__(self, size: tuple[int, int], dtype: torch.dtype, device: str) -> None:
        """Make room for logits of ``dtype`` and ``size`` ``[B, vocab]`` on ``device``."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.values = torch.ones(size, dtype=wide, device=device)
        self._generator = _generator(device)
        #: Where the host draws. Of a CPU ``exponential_`` takes 0.8 ms for 32,000 words, and
        #: uniform numbers in float64 with their logarithms 0.25 ms (one thread).
        self._drawn: Tensor | None = None
        if self._generator.device.type == "cpu":
            self._drawn = torch.ones(size, dtype=torch.float64)

    def begin(self, seed: int) -> None:
        """Begin the sample with ``seed``."""
        self._generator.manual_seed(seed)

    def fill(self) -> None:
        """Draw the noise of the sample's next token; nothing waits for the device."""
        if self._drawn is None:
            self.values.exponential_(1.0, generator=self._generator)
        else:
            self._drawn.uniform_(generator=self._generator).log_().neg_()
            self.values.copy_(self._drawn)


def _generator(device: str) -> torch.Generator:
    """Return a generator of ``device``; the host's where torch makes none, as for XLA."""
    try:
        return torch.Generator(device)
    except RuntimeError:
        return torch.Generator()


class Race(nn.Module):
    """The exponential race with noise that is filled elsewhere.

    The draw of ``llmb.reference.generate.exponential_race``, which takes its noise from torch's own
    generator. A plugin can set the state of that generator before each draw, so that a known word
    wins. All logits of a sample then come from one pass.
    """

    noise: Tensor

    def __init__(self, noise: Tensor) -> None:
        super().__init__()
        self.register_buffer("noise", noise, persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """Return one token ``[B, 1]``, int64, of each row of ``logits`` ``[B, vocab]``."""
        return (probabilities(logits) / self.noise).argmax(dim=-1, keepdim=True)


def filled(noise: Noise, next_token: NextToken) -> NextToken:
    """Return ``next_token`` with fresh ``noise`` before each pass."""

    def filled_first(ids: Tensor, positions: Tensor, cache: KeyValueCache) -> tuple[Tensor, Tensor]:
        noise.fill()
        return next_token(ids, positions, cache)

    return filled_first


def words_of(logits: Tensor, noise: Noise, seed: int, first: int = 0) -> Tensor:
    """Return the words ``[b, new]`` drawn from ``logits`` ``[b, new, vocab]`` of a sample.

    The rows of the logits are the rows of the noise from ``first`` on.
    """
    race = Race(noise.values[first : first + len(logits)])
    noise.begin(seed)
    words = []
    for one in logits.unbind(1):
        noise.fill()
        words.append(race(one))
    return torch.cat(words, 1)


def new_seed() -> int:
    """Return a seed of 48 bits, which nobody knows before the sample begins."""
    return secrets.randbits(SEED_PARTS * _BITS)


def as_floats(seed: int) -> Tensor:
    """Return ``seed`` as two numbers of 24 bits, float32."""
    parts = divmod(seed, 1 << _BITS)
    return torch.tensor(parts, dtype=torch.float32)


def as_seed(floats: Tensor) -> int:
    """Return the seed that ``as_floats`` made ``floats`` of."""
    high, low = (int(value) for value in floats.tolist())
    return (high << _BITS) + low
