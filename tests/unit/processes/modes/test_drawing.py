"""Tokens of mode generate are drawn by a generator that a plugin cannot set."""

from __future__ import annotations

import torch

from llmb.processes.modes.inference import _drawing
from llmb.reference.generate import multinomial


def test_torchs_own_generator_decides_nothing() -> None:
    draw, logits, found = _drawing("cpu"), torch.zeros(1, 1000), []
    for _ in range(8):
        torch.manual_seed(1)
        found.append(int(draw(logits)))
    assert len({*found}) > 1
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(1).get_state())


def test_probable_words_are_drawn() -> None:
    draw, logits = _drawing("cpu"), torch.tensor([[0.0, 20.0, 0.0]])
    assert {int(draw(logits)) for _ in range(20)} == {1}


def test_a_device_without_generators_draws_by_torchs_own() -> None:
    assert _drawing("meta:no device") is multinomial
