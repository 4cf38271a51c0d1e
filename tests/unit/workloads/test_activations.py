"""What the backward pass needs is counted on tensors without memory, and the formula held to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from llmb.config import BF16, FP32, Precision
from llmb.observe.passes import bare
from llmb.reference.data import Batch, make_batch
from llmb.reference.shapes import Shape
from llmb.workloads import find
from llmb.workloads.memory import MemoryJob, activations_at_loss, recipe_of

MIXED = BF16.model_copy(update={"master_weights": True})
NAMES = (
    "llama-1.4b",
    "alcf-1t-readme",
    "llama-3.1-8b-proxy",
    "gpt2-350m",
    "nemo-bert-base",
    "qwen3-0.6b",
)


def counted(shape: Shape, precision: Precision, batch: Batch, size: int) -> int:
    """Return the bytes that autograd keeps of ``size`` sequences, and the logits' gradient."""
    mixed = precision.master_weights
    model = bare(shape).to(torch.bfloat16 if precision == BF16 else torch.float32)
    kept: dict[int, Any] = {}
    with FakeTensorMode():
        without_memory(model)
        inputs = [like(t, size) for t in (batch.ids, batch.labels)]
        extra = {name: like(value, size) for name, value in batch.extra.items()}

        def keep(value: Tensor) -> Tensor:
            storage = value.untyped_storage()
            kept[storage._cdata] = storage  # held, so that no other has its address
            return value

        parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value),
            torch.autocast("cpu", torch.bfloat16, enabled=mixed),
        ):
            model(inputs[0], labels=inputs[1], **extra)
    logits = 2 * inputs[0].numel() * shape.vocab_size * (2 if precision == BF16 else 4)
    return logits + sum(s.nbytes() for key, s in kept.items() if key not in parameters)


def without_memory(model: nn.Module) -> None:
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                module._parameters[name] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def like(value: Tensor, size: int) -> Tensor:
    return torch.empty((size, *value.shape[1:]), dtype=value.dtype)


@pytest.mark.parametrize("size", [2, 16])
@pytest.mark.parametrize("precision", [BF16, FP32, MIXED], ids=["BF16", "FP32", "mixed"])
@pytest.mark.parametrize("name", NAMES)
def test_activations_are_counted_within_a_twentieth(
    name: str, precision: Precision, size: int
) -> None:
    shape = find(name, {}).shape
    shape = replace(shape, num_hidden_layers=3, vocab_size=5000)
    batch = make_batch(1, 1, shape)
    found = activations_at_loss(MemoryJob(shape, recipe_of(precision), size))
    assert found == pytest.approx(counted(shape, precision, batch, size), rel=0.05)
