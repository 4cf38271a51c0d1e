"""Every seed of a run follows from the run's own: of the model, and of each step's tokens."""

from __future__ import annotations

import hashlib


def derive(seed: int, *labels: object) -> int:
    """Return a 63-bit number that follows from ``seed`` and ``labels`` and betrays neither."""
    text = ":".join(map(str, (seed, *labels)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def token_seed(seed: int, repeat: int, step: int) -> int:
    """Return the seed of the tokens of one step; steps and repeats count from 0."""
    return derive(seed, "step", repeat, step)
