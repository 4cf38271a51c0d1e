"""A gradient scaler for several ranks: an overflow on any rank makes all ranks skip the step."""

from __future__ import annotations

import torch.distributed as dist
from torch.amp import GradScaler
from torch.optim import Optimizer


class SharedGradScaler(GradScaler):
    """torch's ``GradScaler`` with an all-reduce of the overflow flags.

    DTensor shares the flag by the placement of the first gradient only. Suppose the first gradient
    is replicated and a later gradient is sharded. Then a single rank would skip the step, and the
    weights of the ranks would diverge.
    """

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients and combine the overflow flags of all ranks: a collective call."""
        super().unscale_(optimizer)
        for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(found, dist.ReduceOp.MAX)
