"""The closed form of names and sizes is what the models themselves say."""

from __future__ import annotations

import pytest
import torch

from llmb.inputs.parameters import parameter_sizes
from llmb.reference.models import model_of
from llmb.reference.shapes import Gpt2Shape, LlamaShape
from llmb.workloads import WORKLOADS

DECODERS = {
    name: workload.shape
    for name, workload in WORKLOADS.items()
    if isinstance(workload.shape, (LlamaShape, Gpt2Shape))
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_parameter_of_every_workload_is_named_with_its_size(name: str) -> None:
    with torch.device("meta"):
        model = model_of(DECODERS[name])
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    assert parameter_sizes(DECODERS[name]) == expected
