"""Every seed follows from the run's by a hash that a stranger can make again."""

from __future__ import annotations

import hashlib

import pytest

from llmb.records.seeds import derive, token_seed


def documented(text: str) -> int:
    """Return the first 63 bits of eight bytes of a hash, as docs/formats has it."""
    first = hashlib.sha256(text.encode()).digest()[:8]
    return int.from_bytes(first, "little") >> 1


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_a_strangers_seeds_are_the_same(seed: int) -> None:
    assert derive(seed, "model") == documented(f"{seed}:model")
    assert token_seed(seed, 2, 11) == documented(f"{seed}:step:2:11")


def test_seeds_have_63_bits_and_no_two_steps_the_same() -> None:
    found = {token_seed(7, repeat, step) for repeat in range(3) for step in range(50)}
    assert len(found) == 150
    assert all(0 <= seed < 2**63 for seed in found)
    assert max(found) >= 2**61, "as many bits as a seed may have"
