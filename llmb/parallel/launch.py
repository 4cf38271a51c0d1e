"""Starts ranks on this machine: torchrun as a library, one ``llmb run`` a rank."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from llmb.config import limit_threads
from llmb.errors import RunFailedError, UnavailableError
from llmb.plugin.builtin.host import usable_cores

#: Exit codes from here on are those of shells for signals.
_SIGNALS = 128


def start(nproc: int, arguments: Sequence[str], run_id: str) -> int:
    """Run ``llmb`` with ``arguments`` as ``nproc`` ranks; return what the first to fail ended with.

    A rank that fails ends the others, and is not started again: that would falsify the timing. Each
    rank has its share of the processor's cores, unless the environment says how many.

    Raises:
        RunFailedError: a rank failed.
        UnavailableError: this torch has no torch.distributed.
    """
    try:
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch
    except ImportError as error:
        raise UnavailableError(
            f"--nproc {nproc}: this torch cannot start ranks ({error})"
        ) from error
    limit_threads(max(1, usable_cores() // nproc))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=run_id,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "llmb", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if 0 < failure.exitcode < _SIGNALS:
            return int(failure.exitcode)  # it has said why
        raise RunFailedError(f"rank {rank} ended with exit code {failure.exitcode}") from None
    return 0
