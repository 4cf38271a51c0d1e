"""What every mode's model runs in."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llmb.config import RunConfig
from llmb.errors import UnavailableError
from llmb.processes.modes.stage import Stage
from tests.unit.builders_runtime import run_config


def autocast(config: RunConfig) -> Any:
    return Stage.autocast(SimpleNamespace(config=config))


def test_a_run_in_mixed_precision_has_its_forward_passes_under_autocast_in_its_format() -> None:
    with autocast(run_config(mixed_precision=True)):
        assert torch.get_autocast_dtype("cpu") is torch.bfloat16
        assert torch.is_autocast_enabled("cpu")
    assert isinstance(autocast(run_config()), nullcontext)


@pytest.mark.parametrize("device", ["meta", "privateuseone:1"])
def test_a_device_without_autocast_is_refused_in_a_line_that_names_the_way_out(device: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        autocast(run_config(mixed_precision=True, device=device))
    said = str(caught.value)
    assert said.startswith(f"{device} has no autocast in BF16")
    assert said.endswith("use --no-mixed-precision")
    assert "\n" not in said
