"""Every workload's model at tiny sizes takes a step of its own recipe; whole runs are in e2e."""

from __future__ import annotations

import math

import pytest
import torch

from llmb.config import Mode
from llmb.reference.data import make_batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_optimizer
from llmb.workloads import WORKLOADS, find

TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "sequence_length": 16,
}
TRAINED = [name for name, one in WORKLOADS.items() if Mode.TRAIN in one.modes]


@pytest.mark.parametrize("name", TRAINED)
def test_a_step_moves_every_weight_and_the_loss_is_a_number(name: str) -> None:
    workload = find(name, TINY)
    model = build(workload.shape, seed=3, dtype=torch.float32)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    optimizer = build_optimizer(model.parameters(), workload.recipe.optimizer)
    batch = make_batch(5, 2, workload.shape)
    loss = model(batch.ids, labels=batch.labels, **batch.extra)
    loss.backward()
    optimizer.step()
    assert math.isfinite(loss.item())
    still = [key for key, value in model.named_parameters() if torch.equal(value, before[key])]
    assert still == []
