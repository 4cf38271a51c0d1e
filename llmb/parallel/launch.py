"""Starts ranks on this machine: torchrun as a library, each rank a process ``llmb run``."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from llmb import endings
from llmb.config import limit_threads, relayed_last_line, torch_alone
from llmb.endings import Interrupted
from llmb.errors import INTERRUPTED_EXIT_CODE, RunFailedError, UnavailableError
from llmb.plugin.builtin.host import usable_cores

#: Exit codes from 128 on are a shell's codes for signals. Example: 130 is SIGINT.
_SIGNALS = 128


def start(nproc: int, arguments: Sequence[str], run_id: str) -> int:
    """Run ``llmb`` with ``arguments`` as ``nproc`` ranks; return the first failed rank's exit code.

    The exit code is 0 if no rank fails. A failed rank ends all ranks. Ranks are not restarted,
    because a restart would falsify the timing. Each rank uses 1 / ``nproc`` of the processor's
    cores, unless the environment sets a number of threads.

    Raises:
        Interrupted: a signal ended this process or a rank.
        RunFailedError: a rank ended without a message of its own, for example by SIGKILL.
        UnavailableError: this torch has no torch.distributed.
    """
    try:
        with torch_alone():
            from torch.distributed.elastic.multiprocessing import SignalException
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
    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # each rank reports its error
    signals = (*endings.STOPPING, endings.WARNING)
    with tempfile.TemporaryDirectory(prefix="llmb-") as folder, _no_rank_left():
        line = Path(folder) / "line"
        try:
            with relayed_last_line(line, signals):
                elastic_launch(config, sys.executable)("-m", "llmb", *arguments)
        except SignalException as error:
            raise Interrupted(error.sigval.name, _said(line)) from None
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if 0 < failure.exitcode < _SIGNALS:
                return int(failure.exitcode)  # the rank has printed its error
            if failure.exitcode == INTERRUPTED_EXIT_CODE:
                raise Interrupted("a signal to a rank", _said(line)) from None
            raise RunFailedError(f"rank {rank} ended with exit code {failure.exitcode}") from None
    return 0


@contextmanager
def _no_rank_left() -> Iterator[None]:
    """Kill leftover ranks: a second signal interrupts torchrun while torchrun ends the ranks."""
    before = {process.pid for process in psutil.Process().children()}
    try:
        yield
    finally:
        endings.listen()  # torchrun has replaced llmb's signal handlers
        with endings.held(raises=False):
            for process in psutil.Process().children():
                if process.pid not in before:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()


def _said(line: Path) -> str:
    """Return the last line of rank 0; empty if rank 0 ended before writing the line."""
    return line.read_text() if line.exists() else ""
