"""Derived seeds: the seeds of the model and of each step's tokens follow from the run's seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass


def derive(*labels: object) -> int:
    """Return a 63-bit number derived from ``labels``, such as a seed, that reveals none of them."""
    text = ":".join(map(str, labels))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True)
class Stamp:
    """A time stamp that came while a repeat ran; the draws for later steps depend on the stamp."""

    #: sha256 of the token, in hex: unknown to everybody before the authority has signed.
    sha256: str
    #: The first step with draws from the stamp; steps count from 0.
    first: int


def nonce_at(nonce: str, stamp: Stamp | None, step: int) -> str:
    """Return the nonce for the draws of ``step``, mixed with the ``stamp`` from ``stamp.first`` on.

    The result has as many hexadecimal digits as ``nonce``.
    """
    if stamp is None or step < stamp.first:
        return nonce
    return hashlib.sha256(f"{nonce}:stamp:{stamp.sha256}".encode()).hexdigest()[: len(nonce)]


def token_seed(seed: int, repeat: int, step: int, nonce: str | None = None) -> int:
    """Return the seed of the tokens of one step; steps and repeats count from 0.

    The ``nonce`` of the repeat is mixed in, so two runs with the same seed have different tokens.
    None in records of rules 2 and older, with tokens that follow from the seed alone.
    """
    labels = ("step", repeat, step) if nonce is None else ("step", repeat, step, nonce)
    return derive(seed, *labels)
