"""Selective activation checkpointing: parses ``--sac-freq``, such as ``1/4``. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmb.errors import UsageError

#: Keep the products of every block, and recompute everything else.
OP = "op"


@dataclass(frozen=True)
class Blocks:
    """``q/p``: of every ``p`` blocks the first ``q`` recompute their activations.

    Block i recomputes iff i mod p < q (llm-train-bench, ``--sac-freq``). Example: with 1/4, blocks
    0, 4 and 8 of 12 recompute. In llm-train-bench 1/1 means no block; here 1/1 follows the rule
    and means every block.
    """

    q: int
    p: int

    def has(self, block: int) -> bool:
        """Tell whether ``block``, counted from 0, recomputes its activations."""
        return block % self.p < self.q

    def count(self, blocks: int) -> int:
        """Return the number of recomputing blocks among ``blocks``."""
        return sum(map(self.has, range(blocks)))


def parse(text: str) -> Blocks | None:
    """Return the blocks that ``text`` selects; None for ``op``, a rule inside every block.

    Raises:
        UsageError: ``text`` is neither ``q/p`` nor ``op``.
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
    """Return the number of ``blocks`` that keep only their input for the backward pass."""
    chosen = parse(text) if text is not None else None
    return chosen.count(blocks) if chosen is not None else 0
