"""The training losses: mean cross-entropies over the positions that have a target."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

#: What ``cross_entropy`` leaves out: a position without a target.
IGNORED = -100


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of predicting token t + 1 from position t, in logits' dtype.

    The last position of each sequence has no target: B * (T - 1) terms are averaged. Shifting the
    labels instead of slicing the logits saves a copy of ``[B, T, vocab]``.
    """
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def masked_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the masked tokens: ``labels`` are -100 everywhere else."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
