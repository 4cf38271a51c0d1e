"""Some logits of every sequence of every call that trains nothing, read in its pause (rule L1)."""

from __future__ import annotations

import torch
from torch import Tensor

from llmb.observe.ledger import StepLedger
from llmb.observe.outputs import OutputWitness
from llmb.observe.places import picked
from llmb.records.audited import TOKENS, LedgerEvidence, LedgerSegment
from llmb.records.places import ELEMENTS, fewer


class OutputLedger(StepLedger):
    """Reads logits of all sequences in each pause, and the tokens that were drawn from them."""

    # See ``StepSampler``: nothing can be replaced on the object alone.
    __slots__ = ("_each", "_sequences", "_tokens", "_witness")

    def __init__(self, witness: OutputWitness) -> None:
        """Read what is shown to ``witness`` in each call."""
        super().__init__()
        self._witness = witness
        #: Sequences of a call, elements that are read of each, and tokens drawn in all of them.
        self._sequences = self._each = self._tokens = 0

    def take(self, places: int, rate: float) -> None:
        """Read the present call's logits at ``places``; there is nothing to set a rate of."""
        del rate
        output = self._witness.output
        where = logits_at(places, output.logits.shape)
        parts = [picked(output.logits.detach(), tuple(where.to(output.logits.device)))]
        self._sequences = len(output.logits)
        self._each = len(parts[0]) // self._sequences
        if output.tokens is not None:
            parts.append(output.tokens.detach().flatten())
            self._tokens = len(parts[1])
        self._send(torch.cat([part.float() for part in parts]))

    def evidence(self) -> LedgerEvidence:
        """Return how many elements of a row are of which sequence, and how many are tokens."""
        names = [f"sequence {number}" for number in range(self._sequences)]
        segments = [LedgerSegment(name=name, elements=self._each) for name in names]
        if self._tokens:
            segments.append(LedgerSegment(name=TOKENS, elements=self._tokens))
        return LedgerEvidence(segments=tuple(segments))


def logits_at(seed: int, shape: torch.Size) -> Tensor:
    """Return which logits of ``shape`` ``[B, P, vocabulary]`` are read, ``[3, elements]``.

    The rows are sequences, positions and words, int64. Each sequence has as many elements as any
    other, one after another: ``ELEMENTS``, and of more than 128 sequences fewer. Example: 7 each of
    1,152.
    """
    sequences, positions, vocabulary = shape
    size = positions * vocabulary
    count = min(fewer(ELEMENTS, sequences), size)
    generator = torch.Generator().manual_seed(seed)
    flat = torch.randint(size, (sequences * count,), generator=generator)
    rows = torch.arange(sequences).repeat_interleave(count)
    return torch.stack((rows, flat // vocabulary, flat % vocabulary))
