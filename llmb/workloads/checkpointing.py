"""Selective activation checkpointing as it is asked for: which blocks compute twice. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmb.errors import UsageError

#: In every block the products are kept and all else is computed again.
OP = "op"


@dataclass(frozen=True)
class Blocks:
    """``q/p``: of every ``p`` blocks the first ``q`` compute their activations again.

    Block i does iff i mod p < q (llm-train-bench, ``--sac-freq``). The original takes 1/1 for none
    at all; here it is what the rule says, every block.
    """

    q: int
    p: int

    def has(self, block: int) -> bool:
        """Tell whether ``block``, counted from 0, computes its activations again."""
        return block % self.p < self.q

    def count(self, blocks: int) -> int:
        """Return how many of ``blocks`` do."""
        return sum(map(self.has, range(blocks)))


def parse(text: str) -> Blocks | None:
    """Return which blocks ``text`` names; None for ``op``, which is about what is in them all.

    Raises:
        UsageError: it is neither.
    """
    if text == OP:
        return None
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text)
    q, p = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= q <= p:
        raise UsageError(
            f"--sac-freq {text}: write q/p with 1 <= q <= p (1/4: every fourth block, 1/1: all), "
            f"or {OP}"
        )
    return Blocks(q, p)


def recomputed_blocks(text: str | None, blocks: int) -> int:
    """Return how many of ``blocks`` keep nothing but their input for the backward pass."""
    chosen = parse(text) if text is not None else None
    return chosen.count(blocks) if chosen is not None else 0
