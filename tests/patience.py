"""Waits for processes as long as they make progress: nothing is red because a machine is slow.

Progress is processor time of a process or of one of its descendants, or bytes that it wrote: to
its output, or to files that are watched. Where there has been none for long, the whole family is
killed, and the test fails with what it last said.
"""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

#: So long nothing at all may move. A run that is at work is never silent for a tenth of it.
PATIENCE_S = 120.0
#: Fewer are no progress: a process that only waits wakes up now and then. At a load of 8 on two
#: cores, one that computes has eight times as many.
_LEAST_CORES = 0.03
_SLICE_S = 0.2
#: How often it is looked what everybody has computed, where patience is long.
_LOOK_S = 5.0
#: What llmb says each minute of a child that shows nothing.
_STILL = re.compile(rb"running for \d+ min")
_SHOWN = 4000


class StuckError(AssertionError):
    """Nothing moved any more; whoever was waited for has been killed."""


class Watch:
    """Notes when anything of some processes last moved, and gives them up when that is long ago."""

    def __init__(
        self,
        processes: Sequence[subprocess.Popen[Any]],
        *,
        output: Path | None = None,
        said: Callable[[], bytes] = bytes,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Begin.

        Args:
            processes: who is waited for.
            output: a file or folder that they write to.
            said: returns all that they have said so far.
            patience_s: how long nothing may move.
        """
        self._output, self._said, self._patience_s = output, said, patience_s
        self._processes = [psutil.Process(p.pid) for p in processes if p.poll() is None]
        self._family = {p.pid: p for p in self._processes}
        self._look_s = min(_LOOK_S, patience_s / 4)
        self._looked = 0.0
        self._moved()

    def look(self) -> None:
        """Return where there is progress, or there was some not long ago.

        Raises:
            StuckError: there was none for too long.
        """
        now = time.monotonic()
        if now - self._looked < self._look_s:
            return
        self._looked = now
        if self._written() != self._before or self._computed():
            self._moved()
        elif now - self._since > self._patience_s:
            self.kill()
            last = self._said()[-_SHOWN:].decode(errors="replace")
            raise StuckError(
                f"for {self._patience_s:.0f} s nobody computed or wrote anything; all were killed. "
                f"Last said:\n{last}"
            )

    def kill(self) -> None:
        """Kill whoever is left of them and of their descendants; the descendants are then gone."""
        family = self.family()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        # How they themselves ended is for whoever started them.
        psutil.wait_procs([p for p in family if p not in self._processes], timeout=10)

    def family(self) -> list[psutil.Process]:
        """Return them and all descendants that were ever seen, as far as they are still there."""
        # Where the first have ended, those are asked whom they left.
        there = [p for p in self._processes if _is_there(p)] or list(self._family.values())
        for process in there:
            with suppress(psutil.NoSuchProcess):
                self._family |= {p.pid: p for p in process.children(recursive=True)}
        self._family = {pid: p for pid, p in self._family.items() if p.is_running()}
        return list(self._family.values())

    def _moved(self) -> None:
        self._since = time.monotonic()
        self._before, self._cpu_s = self._written(), self._all_cpu_s()

    def _all_cpu_s(self) -> dict[int, float]:
        """Return the seconds that each has computed, with its children that have ended."""
        found = {}
        for process in self.family():
            with suppress(psutil.NoSuchProcess):
                found[process.pid] = sum(process.cpu_times()[:4])
        return found

    def _computed(self) -> bool:
        enough = _LEAST_CORES * self._patience_s
        return any(s - self._cpu_s.get(pid, 0.0) > enough for pid, s in self._all_cpu_s().items())

    def _written(self) -> tuple[int, int]:
        """Return the bytes in files and what was said, but for that something still goes on."""
        lines = self._said().split(b"\n")
        return _size(self._output), sum(len(line) + 1 for line in lines if not _STILL.search(line))


def _is_there(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _size(output: Path | None) -> int:
    """Return the bytes in a file, or in all files below a folder."""
    if output is None:
        return 0
    below = (os.path.join(where, name) for where, _, names in os.walk(output) for name in names)
    found = 0
    for file in (output, *below):
        with suppress(OSError):  # gone since it was listed
            found += os.lstat(file).st_size
    return found


def until(
    condition: Callable[[], bool], processes: Sequence[subprocess.Popen[Any]], **how: Any
) -> None:
    """Return when ``condition`` holds, as long as ``processes`` make progress (see ``Watch``)."""
    watch = Watch(processes, **how)
    while not condition():
        watch.look()
        time.sleep(min(_SLICE_S, 0.02))


def ended(process: subprocess.Popen[Any], **how: Any) -> int:
    """Return the exit code of ``process`` when it has ended; what it says goes elsewhere."""
    until(lambda: process.poll() is not None, [process], **how)
    return process.wait()


def run(
    command: Sequence[str],
    *,
    output: Path | None = None,
    patience_s: float = PATIENCE_S,
    **how: Any,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` to its end, as ``subprocess.run`` would; see ``Watch``."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **how)
    (done,) = finished([process], output=output, patience_s=patience_s)
    return done


def finished(
    processes: Sequence[subprocess.Popen[Any]],
    *,
    output: Path | None = None,
    patience_s: float = PATIENCE_S,
) -> list[subprocess.CompletedProcess[str]]:
    """Return how ``processes`` ended and what they said to their pipes, when all have."""
    heard: dict[Any, bytearray] = {
        pipe: bytearray() for p in processes for pipe in (p.stdout, p.stderr) if pipe is not None
    }
    watch = Watch(
        processes, output=output, said=lambda: b"".join(heard.values()), patience_s=patience_s
    )
    try:
        _hear(heard, watch)
        for process in processes:
            ended(process, output=output, patience_s=patience_s)
    except BaseException:
        watch.kill()
        raise
    finally:
        for pipe in heard:
            pipe.close()
        for process in processes:
            process.wait()

    def text(pipe: Any) -> str:
        return "" if pipe is None else _text(heard[pipe])

    return [
        subprocess.CompletedProcess(p.args, p.returncode, text(p.stdout), text(p.stderr))
        for p in processes
    ]


def _hear(heard: dict[Any, bytearray], watch: Watch) -> None:
    """Read all pipes until nobody writes to them any more."""
    with selectors.DefaultSelector() as selector:
        for pipe in heard:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(_SLICE_S):
                piece = os.read(key.fd, 2**16)
                if piece:
                    heard[key.fileobj] += piece
                else:
                    selector.unregister(key.fileobj)
            watch.look()


def _text(data: bytearray) -> str:
    """Return what was said, with the ends of lines that ``subprocess`` makes of any."""
    return data.decode().replace("\r\n", "\n").replace("\r", "\n")
