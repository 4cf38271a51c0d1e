"""The optimizer: ``torch.optim.AdamW`` with the workload's constants on all parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW

from .recipe import OFFICIAL_OPTIMIZER, Optimizer


def build_adamw(
    parameters: Iterable[nn.Parameter],
    constants: Optimizer = OFFICIAL_OPTIMIZER,
    *,
    foreach: bool | None = None,
    fused: bool | None = None,
    capturable: bool = False,
) -> AdamW:
    """Return AdamW over ``parameters``; the three switches choose a kernel, never the arithmetic.

    Norm gains are decayed too, as in the source document's own loop, whose no-decay group is empty.
    """
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
