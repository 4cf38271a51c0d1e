"""The noise of mode generate: each word is the argmax of probabilities divided by noise.

The worker fills the noise right before each token's pass, from a seed that llmb draws in the pause
before the sample. An honest run draws the same noise again, and with the worker's words its own
words (rule L1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import randbits
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from llmb.observe.plain_tensors import PlainTensors
from llmb.records.audited import SEED_PARTS
from llmb.reference.cache import KeyValueCache
from llmb.reference.generate import NextToken, probabilities

#: Bits of a part of a seed (``llmb.records.audited.SEED_PARTS``).
_BITS = 24


class Noise:
    """Independent numbers from Exp(1) ``[B, vocab]``, always at the same address.

    A sample's noise follows from the sample's seed, on the same kind of device.
    """

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = ("_device", "_drawn", "_generator", "values")

    def __init__(self, size: tuple[int, int], dtype: torch.dtype, device: str) -> None:
        """Make room for logits of ``dtype`` and ``size`` ``[B, vocab]`` on ``device``."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.values = torch.ones(size, dtype=wide, device=device)
        self._device = device
        self._generator = _generator(device)
        #: Where the host draws. Of a CPU ``exponential_`` takes 0.8 ms for 32,000 words, and
        #: uniform numbers in float64 with their logarithms 0.25 ms (one thread).
        self._drawn: Tensor | None = None
        if self._generator.device.type == "cpu":
            self._drawn = torch.ones(size, dtype=torch.float64)

    def begin(self, seed: int) -> None:
        """Begin the sample with ``seed``, and with a generator that no code has seen."""
        self._generator = _generator(self._device)
        self._generator.manual_seed(seed)

    def fill(self) -> None:
        """Draw the noise of the sample's next token.

        A device with a ``torch.Generator`` draws by itself, and nothing waits. For other devices,
        such as XLA, the host draws and copies: 12.5 ns for each number.
        """
        if self._drawn is None:
            self.values.exponential_(1.0, generator=self._generator)
        else:
            self._drawn.uniform_(generator=self._generator).log_().neg_()
            self.values.copy_(self._drawn)


def _generator(device: str) -> torch.Generator:
    """Return a generator of ``device``; the host's where torch makes or uses none, as for XLA."""
    try:
        own = torch.Generator(device)
        torch.empty(1, device=device).exponential_(generator=own)
    except RuntimeError:
        return torch.Generator()
    return own


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


@dataclass(slots=True, eq=False)
class Filled:
    """``next_token`` with fresh noise before each pass.

    A subclass or a wrapper of ``Tensor``, or a mode of torch, would see the memory that llmb copies
    the logits to: a plugin could draw from narrow logits, and write right logits there later (rule
    N1).
    """

    noise: Noise
    next_token: NextToken
    #: What watched a pass since the list was emptied: strange results, and modes of torch.
    strange: list[Any] = field(default_factory=list)
    #: Knows the tensors of the device that draws.
    plain: PlainTensors = field(init=False)

    def __post_init__(self) -> None:
        """Accept results like the noise, which llmb has made."""
        self.plain = PlainTensors(self.noise.values)

    def __call__(
        self, ids: Tensor, positions: Tensor, cache: KeyValueCache
    ) -> tuple[Tensor, Tensor]:
        """Return a token ``[B, 1]`` to follow ``ids`` ``[B, n]``, and the logits of its draw."""
        self.noise.fill()
        token, logits = self.next_token(ids, positions, cache)
        if not self.strange:
            plain = self.plain
            self.strange += [
                one for one in (token, logits) if type(one) is not Tensor or not plain.has(one)
            ]
            self.strange += strange_modes()
        return token, logits


def strange_modes() -> list[object]:
    """Return the modes of torch that see each operation, but that of torch.set_default_device."""
    modes: list[object] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    every = (*modes, *_get_current_dispatch_mode_stack())
    return [mode for mode in every if type(mode) is not DeviceContext]


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
    """Return a seed of 48 bits from the operating system."""
    return randbits(SEED_PARTS * _BITS)


def as_floats(seed: int) -> Tensor:
    """Return ``seed`` as two numbers of 24 bits, float32."""
    parts = divmod(seed, 1 << _BITS)
    return torch.tensor(parts, dtype=torch.float32)


def as_seed(floats: Tensor) -> int:
    """Return the seed that ``as_floats`` made ``floats`` of."""
    high, low = (int(value) for value in floats.tolist())
    return (high << _BITS) + low
