"""How far two implementations of one model are apart."""

from __future__ import annotations

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
    """Return the worst relative error (Frobenius norm) and whose it is; both have the same names."""
    assert ours.keys() == theirs.keys()
    errors = {
        name: ((value.double() - theirs[name].double()).norm() / theirs[name].double().norm())
        for name, value in ours.items()
    }
    name, error = max(errors.items(), key=itemgetter(1))
    return name, float(error)
