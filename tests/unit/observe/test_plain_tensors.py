"""A tensor of torch's exact class is plain, or a wrapper that passes each read to other code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from llmb.observe.plain_tensors import PlainTensors, _wrapped


def in_inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


@pytest.mark.parametrize(
    "tensor",
    [
        nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        torch.ones(2, 3).t(),
        torch.ones(2, dtype=torch.int64),
        torch.nn.functional.linear(torch.ones(1, 2), nn.Parameter(torch.ones(3, 2))),
        torch._neg_view(torch.ones(2)),
        torch._efficientzerotensor(2),
        in_inference(),
        torch.ones(2, device="meta"),
    ],
)
def test_plain_tensors_are_plain(tensor: Tensor) -> None:
    assert PlainTensors().has(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        _wrapped(torch.ones(2)),
        torch._to_functional_tensor(torch.ones(2)),
        torch._C._functorch._add_batch_dim(torch.ones(2), 0, 1),
    ],
)
def test_wrappers_of_torchs_exact_class_are_not(tensor: Tensor) -> None:
    assert type(tensor) is Tensor
    assert not PlainTensors().has(tensor)


def test_tensors_of_a_device_are_plain_once_llmb_has_made_such_a_tensor() -> None:
    """A device may hold all tensors in torch's functional form, as XLA does."""
    functional = torch._to_functional_tensor(torch.ones(2))
    assert PlainTensors(functional).has(torch._to_functional_tensor(torch.ones(3)))
    wrapped = _wrapped(torch.ones(2))
    assert not PlainTensors(wrapped).has(wrapped), "whatever a plugin's environment does"
