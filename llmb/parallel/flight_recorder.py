"""The last collective calls of each rank, kept where a run of ranks fails: torch's flight recorder.

PyTorch remembers the last 2,000 calls by itself, of NCCL, gloo and others (``TORCH_FR_BUFFER_SIZE``
is another number; torch before 2.9 has it for NCCL alone). Which rank did not come to which call,
``torchfrtrace --prefix rank_ RUN_DIR/collectives`` says.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch._C._distributed_c10d as c10d

_PREFIX = "rank_"


def keep(folder: str, rank: int) -> None:
    """Write the calls of this rank to ``folder``; nothing where it is on another host's disk."""
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    path = Path(folder)
    if not folder or dump is None or not path.parent.is_dir():
        return
    with suppress(OSError, RuntimeError):  # a run that has failed says why, and not this
        path.mkdir(exist_ok=True)
        (path / f"{_PREFIX}{rank}").write_bytes(dump())
