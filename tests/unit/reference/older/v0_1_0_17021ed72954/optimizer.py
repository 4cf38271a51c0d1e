"""The optimizer: ``torch.optim.AdamW`` with the benchmark's hyper-parameters on all parameters."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import AdamW

LEARNING_RATE = 1e-5
BETAS = (0.9, 0.999)
EPS = 1e-6
WEIGHT_DECAY = 0.01


def build_adamw(
    parameters: Iterable[nn.Parameter],
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
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
        weight_decay=WEIGHT_DECAY,
        foreach=foreach,
        fused=fused,
        capturable=capturable,
    )
