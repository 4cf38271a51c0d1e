"""Starts ``llmb run`` as a user would, on some of the node's cores, and waits with a time limit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import psutil

from llmb import clock
from llmb.errors import BundleRefusedError, RunFailedError
from llmb.records.bundle import read_record
from llmb.records.run_record import RunRecord

_LOG = "run.log"
_RECORDS = "*/record.json"
_SLICE_S = 0.5
_FAREWELL_S = 10.0


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Pin child processes started within the context to ``cores``; empty: pin nothing.

    The calling thread is pinned, too, and children inherit its affinity. Systems without
    ``sched_setaffinity``, such as macOS, pin nothing.
    """
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cores_of(count: int) -> tuple[tuple[int, ...], ...]:
    """Return ``count`` shares of the cores usable by this process, neighbouring cores together.

    Example: cores 0 to 7 in 2 shares are cores 0 to 3 and cores 4 to 7. On systems that do not
    list the cores, every share is empty.
    """
    if not hasattr(os, "sched_getaffinity"):
        return ((),) * count
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < count:  # more ranks than cores share them in turn
        return tuple((cores[number % len(cores)],) for number in range(count))
    ends = [len(cores) * number // count for number in range(count + 1)]
    return tuple(tuple(cores[a:b]) for a, b in pairwise(ends))


class NodeRun:
    """A running ``llmb run``; leaving the context ends the run and all its child processes."""

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        """Start the run; run directory and output (``run.log``) go to ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        #: Records of runs from before an interruption.
        self._earlier = {*folder.glob(_RECORDS)}
        command = [sys.executable, "-m", "llmb", "--isolated", "run", *arguments]
        command += [f"--output-dir={folder}", "--quiet"]
        with (folder / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--output-dir={folder}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> NodeRun:
        """Return the run."""
        return self

    def __exit__(self, *how: object) -> None:
        """End a run still at work: terminate, wait up to 10 s, then kill the whole process tree."""
        if self._process.poll() is not None:
            return
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_FAREWELL_S)
            self._process.kill()
            for process in family:  # by now the children have ended, or never will
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()

    def record(self, limit_s: float, waiting: Callable[[], None]) -> tuple[Path, RunRecord]:
        """Return the path of the run directory, and the run's record.

        ``waiting`` is called twice a second until the run ends.

        Raises:
            RunFailedError: the run failed (with the run's error line), took longer than
                ``limit_s`` seconds, or left no readable record.
        """
        deadline = clock.now_ns() + int(limit_s * 1e9)
        while (code := self._code()) is None:
            waiting()
            if clock.now_ns() > deadline:
                raise RunFailedError(f"did not end within {limit_s:.0f} s (see {self._folder})")
        if code:
            raise RunFailedError(self._said(code))
        try:
            new = {*self._folder.glob(_RECORDS)} - self._earlier
            path = next(found.parent for found in new)
            return path, read_record(path)
        except (StopIteration, BundleRefusedError) as error:
            raise RunFailedError(f"left no record that can be read (see {self._folder})") from error

    def _code(self) -> int | None:
        try:
            return self._process.wait(_SLICE_S)
        except subprocess.TimeoutExpired:
            return None

    def _said(self, code: int) -> str:
        """Return llmb's first error line from the log; without one, the exit code."""
        lines = (self._folder / _LOG).read_text(errors="replace").splitlines()
        said = [line.partition(": ")[2] for line in lines if line.startswith(("llmb: ", "Error: "))]
        return said[0] if said else f"ended with exit code {code} (see {self._folder / _LOG})"
