"""First weights, batches and probes do not hang on the default dtype of the process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from llmb import workloads
from llmb.config import FP32
from llmb.observe.first_model import first_model
from llmb.observe.pairs import Pairs
from llmb.observe.step_batches import StepBatches
from tests.unit.builders_runtime import run_config

#: BERT: the masks of a batch are random numbers, too.
CONFIG = run_config(
    workload="nemo-bert-base",
    precision=FP32,
    shape_overrides={
        "hidden_size": 256,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    },
)


def made() -> dict[str, Tensor]:
    """Return first weights, a batch, and weights of the probe ``pairs``."""
    workload = workloads.of(CONFIG)
    model = first_model(CONFIG, workload)
    batch, pairs = StepBatches(CONFIG, workload.shape).make(3), Pairs(workload.shape, 5, "float32")
    found = {name: p.detach() for name, p in model.named_parameters()}
    found |= {f"pairs {name}": pairs.weight(name, p.detach()) for name, p in found.items()}
    return found | {"ids": batch.ids, "labels": batch.labels, "probe": pairs.batch().labels}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_default_dtype_that_a_plugin_leaves_on_changes_nothing(dtype: torch.dtype) -> None:
    due = made()
    torch.set_default_dtype(dtype)
    try:
        found = made()
        assert torch.get_default_dtype() is dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(found[name].dtype is value.dtype for name, value in due.items())
    assert [name for name, value in due.items() if not torch.equal(found[name], value)] == []
