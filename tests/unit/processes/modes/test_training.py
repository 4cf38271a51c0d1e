"""The training of a worker ends with a line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from llmb.errors import RunFailedError
from llmb.processes.modes.training import _of_losses
from llmb.reference.train_loop import StepDone


def test_a_model_that_torch_compiles_anew_in_each_step_is_told_with_a_remedy() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def model(value: torch.Tensor, count: str) -> torch.Tensor:
        return value + len(count)

    def steps() -> Iterator[StepDone]:
        for number in range(20):
            model(torch.ones(1), "x" * number)
        yield from ()

    with pytest.raises(RunFailedError, match="keep the value out of forward"):
        list(_of_losses(steps()))


def test_a_model_that_returns_no_tensor_is_told_to_return_its_loss() -> None:
    def steps() -> Iterator[StepDone]:
        yield from ()
        {"loss": 1.0}.backward()  # type: ignore[attr-defined]

    with pytest.raises(RunFailedError, match="the model returned a dict: with labels a model must"):
        list(_of_losses(steps()))


def test_another_error_of_a_step_stays_as_it_is() -> None:
    def steps() -> Iterator[StepDone]:
        yield from ()
        raise RuntimeError("a kernel failed")

    with pytest.raises(RuntimeError, match="a kernel failed"):
        list(_of_losses(steps()))
