"""The reference model with the first weights of a run, whatever default dtype a plugin has set."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from llmb.config import RunConfig
from llmb.inputs.start import values_of
from llmb.reference.models import build
from llmb.workloads import Workload


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Let the reference draw random numbers in float32, as in a process without the plugin.

    A plugin may leave another default dtype: in float64 torch draws other numbers from a seed, and
    bfloat16 rounds the drawn numbers.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@float32_by_default()
def first_model(config: RunConfig, workload: Workload) -> nn.Module:
    """Return the reference model with the first weights, in the stored dtype, on the device."""
    stored = getattr(torch, config.precision.stored_dtype)
    values = values_of(config, workload)
    return build(workload.shape, config.seed, stored, config.device, values)
