"""How far two implementations of one model are apart."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from operator import itemgetter

import torch
from torch import Tensor, nn


def shaken(model: nn.Module) -> nn.Module:
    """Return ``model`` with random gains and biases, so that their places show."""
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model


def largest_error(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> tuple[str, float]:
    """Return the worst relative error (Frobenius norm) and whose it is; names are the same.

    What is next to nothing beside the others (the gradient of a key's bias is zero but for
    rounding: softmax does not see it) is held to a thousandth of their median.
    """
    assert ours.keys() == theirs.keys()
    sizes = {name: float(value.detach().double().norm()) for name, value in theirs.items()}
    least = statistics.median(sizes.values()) / 1000
    errors = {
        name: float((value - theirs[name]).detach().double().norm()) / max(sizes[name], least)
        for name, value in ours.items()
    }
    name, error = max(errors.items(), key=itemgetter(1))
    return name, error
