"""The loss scale of a training in FP16 under autocast: in worker and replay the same."""

from __future__ import annotations

import torch
from torch.amp import GradScaler

#: The scale never grows: a smaller scale shows the number of skipped steps.
FIRST, _NEVER = 2.0**16, 2**31 - 1


def new_scaler(
    device: str, kind: type[GradScaler] = GradScaler, *, times: float = 1.0
) -> GradScaler:
    """Return a scaler of class ``kind`` for ``device``, such as ``cuda:0``.

    The scale is 2^16, times ``times``. Example: 9 in one process that replays the batches of nine
    ranks in turn. The loss of each batch is divided by nine there; the gradients overflow in the
    same steps as those of the ranks if the scale is nine times as large.
    """
    return kind(torch.device(device).type, init_scale=times * FIRST, growth_interval=_NEVER)
