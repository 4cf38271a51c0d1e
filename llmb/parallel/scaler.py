"""A gradient scaler whose ranks agree: where one has found an overflow, all leave the step out."""

from __future__ import annotations

import torch.distributed as dist
from torch.amp import GradScaler
from torch.optim import Optimizer


class SharedGradScaler(GradScaler):
    """torch's scaler; a rank's own shard does not decide alone.

    DTensors share what they have found by themselves, by the placement of the first gradient: where
    that is replicated and another is a shard, one rank alone would leave the step out, and the
    ranks' weights would part.
    """

    def unscale_(self, optimizer: Optimizer) -> None:
        """Scale the gradients back, and ask every rank for overflows: a collective call."""
        super().unscale_(optimizer)
        for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(found, dist.ReduceOp.MAX)
