"""Read logits of every sequence in the pause of every call without training (rule L1)."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.observe.ledger import StepLedger
from llmb.observe.noise import as_floats
from llmb.observe.outputs import OutputWitness
from llmb.observe.places import picked
from llmb.records.audited import NOISE, TOKENS, LedgerEvidence, LedgerSegment
from llmb.records.places import ELEMENTS, fewer


class OutputLedger(StepLedger):
    """Reads logits of all sequences in each pause, and the tokens drawn from the logits.

    The seed of the noise stands at the end of a row.
    """

    # See ``StepSampler``: with slots no method can be replaced on the object alone.
    __slots__ = ("_each", "_seed_parts", "_sequences", "_tokens", "_witness")

    def __init__(self, witness: OutputWitness) -> None:
        """Read the output shown to ``witness`` in each call."""
        super().__init__()
        self._witness = witness
        #: Sequences of a call, elements read per sequence, tokens drawn in all sequences, and
        #: numbers that hold the seed of the noise.
        self._sequences = self._each = self._tokens = self._seed_parts = 0

    def take(self, places: int, rate: float) -> None:
        """Read the present call's logits at ``places``; without training, ``rate`` is unused."""
        del rate
        output = self._witness.output
        where = logits_at(places, output.logits.shape)
        parts = [picked(output.logits.detach(), tuple(where.to(output.logits.device)))]
        self._sequences = len(output.logits)
        self._each = len(parts[0]) // self._sequences
        if output.tokens is not None:
            parts.append(output.tokens.detach().flatten())
            self._tokens = len(parts[1])
        if output.noise is not None:
            seed = as_floats(output.noise).to(output.logits.device)
            parts.append(seed)
            self._seed_parts = len(seed)
        self._send(torch.cat([part.float() for part in parts]))

    def evidence(self) -> LedgerEvidence:
        """Return the elements per sequence in a row, the tokens, and the seed of their noise."""
        names = [f"sequence {number}" for number in range(self._sequences)]
        segments = [LedgerSegment(name=name, elements=self._each) for name in names]
        if self._tokens:
            segments.append(LedgerSegment(name=TOKENS, elements=self._tokens))
        if self._seed_parts:
            segments.append(LedgerSegment(name=NOISE, elements=self._seed_parts))
        return LedgerEvidence(segments=tuple(segments))


def logits_at(seed: int, shape: torch.Size) -> Tensor:
    """Return the indices of the logits to read, for ``shape`` ``[B, P, vocabulary]``.

    The result ``[3, elements]`` (int64) has rows for sequences, positions and words. Each sequence
    has the same number of elements, one after another: ``ELEMENTS``, and fewer for more than 128
    sequences. Example: 7 elements for each of 1,152 sequences.
    """
    sequences, positions, vocabulary = shape
    size = positions * vocabulary
    count = min(fewer(ELEMENTS, sequences), size)
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randint(size, (sequences * count,), generator=generator)
    rows = torch.arange(sequences).repeat_interleave(count)
    return torch.stack((rows, flat // vocabulary, flat % vocabulary))
