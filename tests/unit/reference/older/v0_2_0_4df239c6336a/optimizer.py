"""The optimizer: ``torch.optim``'s own with the workload's constants on all parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import SGD, AdamW

from .recipe import OFFICIAL_OPTIMIZER, Optimizer


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    constants: Optimizer = OFFICIAL_OPTIMIZER,
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    capturable: bool = False,
) -> torch.optim.Optimizer:
    """Return the optimizer over ``parameters``; the switches choose a kernel, not the arithmetic.

    Norm gains are decayed too, as in the source document's own loop, whose no-decay group is empty.
    SGD has no momentum; its decay is an addition to the gradient. It is never fused: on a CPU the
    fused kernel of torch 2.13 leaves 16-bit weights as they are.
    """
    if constants.name == "SGD":
        rate, decay = constants.lr, constants.weight_decay
        return SGD(parameters, lr=rate, weight_decay=decay, foreach=foreach)
    return AdamW(
        parameters,
        lr=constants.lr,
        betas=constants.betas,
        eps=constants.eps,
        weight_decay=constants.weight_decay,
        foreach=foreach,
        fused=fused,
        capturable=capturable,
    )
