"""Writes torch's flight recorder, the last collective calls of each rank, when a run fails.

PyTorch records the last 2,000 calls of backends such as NCCL and gloo. ``TORCH_FR_BUFFER_SIZE``
sets another number; torch before 2.9 records NCCL calls alone. The command
``torchfrtrace --prefix rank_ RUN_DIR/collectives`` prints the ranks that missed a call.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import torch._C._distributed_c10d as c10d

_PREFIX = "rank_"
#: The thread that waits for other ranks and the main thread may both hear of a failure.
_writing = threading.Lock()


def keep(folder: str, rank: int) -> None:
    """Write the calls of this rank to ``folder``, if its parent folder exists on this host.

    The first call writes. A later call waits until the file is complete.
    """
    dump = getattr(c10d, "_dump_fr_trace", None) or getattr(c10d, "_dump_nccl_trace", None)
    path = Path(folder)
    if not folder or dump is None or not path.parent.is_dir():
        return
    # Keep the run's own error as the reported error.
    with _writing, suppress(OSError, RuntimeError):
        path.mkdir(exist_ok=True)
        file = path / f"{_PREFIX}{rank}"
        if not file.exists():
            file.write_bytes(dump())
