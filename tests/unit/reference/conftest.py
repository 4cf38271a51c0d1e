"""A model small enough to train in milliseconds, with every feature of the large one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmb.reference.data import random_tokens
from llmb.reference.llama import Llama
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape


@pytest.fixture
def shape() -> LlamaShape:
    return LlamaShape(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        sequence_length=16,
        initializer_range=0.15,  # 1 / sqrt(hidden_size): attention is far from uniform
    )


@pytest.fixture
def model(shape: LlamaShape) -> Llama:
    return build(shape, seed=1, dtype=torch.float32)


@pytest.fixture
def ids(shape: LlamaShape) -> Tensor:
    ids = random_tokens(2, 3, shape.sequence_length, shape.vocab_size)
    ids[0, 5] = 0  # the padding token is among them
    return ids
