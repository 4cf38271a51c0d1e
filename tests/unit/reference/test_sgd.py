"""SGD as Lit-GPT workloads are trained with it: no momentum, decay added to the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from llmb.reference.optimizer import build_optimizer
from llmb.reference.recipe import Optimizer

CONSTANTS = Optimizer("SGD", lr=6e-4, weight_decay=0.1)


def test_the_optimizer_is_torchs_sgd_with_the_workloads_constants_and_no_momentum() -> None:
    optimizer = build_optimizer([nn.Parameter(torch.ones(3))], CONSTANTS)
    assert type(optimizer) is SGD
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (6e-4, 0.1)
    assert (group["momentum"], group["dampening"], group["nesterov"]) == (0, 0, False)


def test_sgd_is_never_fused_whatever_a_plugin_asks_for() -> None:
    weights = [nn.Parameter(torch.ones(3))]
    optimizer = build_optimizer(weights, CONSTANTS, fused=True, capturable=True)
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize("foreach", [None, False, True])
def test_a_step_takes_the_gradient_and_the_decayed_weight(foreach: bool | None) -> None:
    start, gradient = torch.randn(7, 5), torch.randn(7, 5)
    weight = nn.Parameter(start.clone())
    weight.grad = gradient.clone()
    build_optimizer([weight], CONSTANTS, foreach=foreach).step()
    assert torch.allclose(weight, start - 6e-4 * (gradient + 0.1 * start), rtol=0, atol=1e-7)


def test_sgd_keeps_nothing_of_a_step_so_that_the_next_depends_on_its_own_gradient_alone() -> None:
    weight = nn.Parameter(torch.zeros(4))
    optimizer = build_optimizer([weight], CONSTANTS)
    weight.grad = torch.full((4,), 9.0)
    optimizer.step()
    first = weight.detach().clone()
    weight.grad = torch.zeros(4)
    optimizer.step()
    assert torch.allclose(weight, first * (1 - 6e-5), rtol=1e-6, atol=0)
    assert CONSTANTS.moments == 0
