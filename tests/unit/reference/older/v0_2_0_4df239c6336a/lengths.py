"""Sequence lengths of a run with dynamic shapes: a function of the step's seed. No torch."""

from __future__ import annotations

import random

#: The shortest sequence, as in the original (Lit-GPT, ``train.py --dynamic true``).
SHORTEST = 10


def draw_lengths(seed: int, batch_size: int, longest: int) -> list[int]:
    """Return the length of each of ``batch_size`` sequences, uniform from 10 to ``longest``."""
    draw = random.Random(f"lengths:{seed}")
    return [draw.randint(min(SHORTEST, longest), longest) for _ in range(batch_size)]
