"""AdamW has the benchmark's hyper-parameters on every parameter, whichever kernel runs it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from llmb.reference.llama import Llama
from llmb.reference.optimizer import build_optimizer


def test_hyper_parameters_are_those_of_the_rules() -> None:
    optimizer = build_optimizer([nn.Parameter(torch.ones(3))])
    assert type(optimizer) is torch.optim.AdamW
    (group,) = optimizer.param_groups
    assert {key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "amsgrad")} == {
        "lr": 1e-5,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.01,
        "amsgrad": False,
    }


def test_one_group_holds_every_parameter_norm_gains_too(model: Llama) -> None:
    (group,) = build_optimizer(model.parameters()).param_groups
    assert [id(p) for p in group["params"]] == [id(p) for p in model.parameters()]


@pytest.mark.parametrize("switch", ["foreach", "fused", "capturable"])
def test_a_kernel_switch_reaches_the_optimizer_alone(switch: str) -> None:
    (group,) = build_optimizer([nn.Parameter(torch.ones(3))], **{switch: True}).param_groups
    assert [key for key in ("foreach", "fused", "capturable") if group[key]] == [switch]


@pytest.mark.parametrize("switches", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
def test_two_steps_follow_the_formula_of_adamw_with_every_kernel(switches: dict[str, bool]) -> None:
    generator = torch.Generator().manual_seed(9)
    start, *gradients = torch.randn(3, 20, dtype=torch.float64, generator=generator)
    parameter = nn.Parameter(start.clone())
    optimizer = build_optimizer([parameter], **switches)
    value, first, second = start.clone(), torch.zeros(20), torch.zeros(20)
    for t, gradient in enumerate(gradients, start=1):
        gradient = gradient * 1e-6  # as small as eps, so that eps has a say
        parameter.grad = gradient.clone()
        optimizer.step()
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        update = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-6)
        value = value * (1 - 1e-5 * 0.01) - 1e-5 * update
    torch.testing.assert_close(parameter.data - start, value - start, rtol=1e-9, atol=1e-15)
