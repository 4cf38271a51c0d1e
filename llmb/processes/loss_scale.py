"""The loss scale of a training in FP16 under autocast: in worker and replay the same."""

from __future__ import annotations

import torch
from torch.amp import GradScaler

#: The scale never grows: a smaller scale shows the number of skipped steps.
FIRST, _NEVER = 2.0**16, 2**31 - 1


def new_scaler(device: str, kind: type[GradScaler] = GradScaler) -> GradScaler:
    """Return a scaler of class ``kind`` with the scale 2^16, for ``device``, such as ``cuda:0``."""
    return kind(torch.device(device).type, init_scale=FIRST, growth_interval=_NEVER)
