"""Turns: a measured process stops at the end of a step until it is told to go on.

Every side of a comparison is a process of its own. It passes a gate at the end of each step; there
it waits, its model in memory and its threads asleep, while the other sides have their turn. What is
timed lies between two passages, on the side's own clock: starting up, compiling and warming up do
not count, and all sides meet the same noise within seconds of each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Turn:
    """What one side did in one turn."""

    seconds: float
    cpu_seconds: float
    #: Of each step.
    steps: tuple[float, ...]
    tokens: int
    #: Cores that other programs kept busy meanwhile.
    others: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Tokens per second of processor time, all cores together."""
        return self.tokens / self.cpu_seconds


@dataclass
class About:
    """What a side says of itself before its first turn."""

    parameters: int = 0
    #: What it does that the others do not, or the other way round.
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    #: Seconds of its last untimed step, by which the length of a turn is chosen.
    step_seconds: float = 0.0


class Gate:
    """The gate in the measured process."""

    def __init__(self, warmup_steps: int, tokens_per_step: int) -> None:
        self.about = About()
        self.peak_bytes = 0
        self._untimed = warmup_steps
        self._tokens = tokens_per_step
        self._left = 0
        self._stamps: list[float] = [time.perf_counter()]
        self._cpu = 0.0
        # What a library prints to stdout goes to stderr; the old stdout is for turns only.
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def passed(self, *_: object) -> None:
        """End a step: go on at once within a turn, else wait for the next one."""
        self._stamps.append(time.perf_counter())
        if self._untimed > 0:
            self._untimed -= 1
            if self._untimed == 0:
                self.about.step_seconds = self._stamps[-1] - self._stamps[-2]
                self._tell(asdict(self.about))
                self._wait()
            return
        self._left -= 1
        if self._left == 0:
            cpu = time.process_time() - self._cpu
            steps = [b - a for a, b in zip(self._stamps, self._stamps[1:], strict=False)]
            turn = Turn(sum(steps), cpu, tuple(steps), len(steps) * self._tokens)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            self._tell({**asdict(turn), "peak_bytes": peak})
            self._wait()

    def _tell(self, message: dict[str, Any]) -> None:
        print(json.dumps(message), file=self._out, flush=True)

    def _wait(self) -> None:
        order = sys.stdin.readline()
        if not order:
            raise SystemExit(0)  # in the middle of its loop, so it writes no checkpoint
        self._left = int(order)
        self._cpu = time.process_time()
        self._stamps = [time.perf_counter()]


class Side:
    """A measured process, seen from the one that hands out turns."""

    def __init__(self, name: str, command: list[str], env: dict[str, str], log: Path) -> None:
        self.name, self._command, self._env, self._log = name, command, env, log
        self._process: subprocess.Popen[str] | None = None
        self.about: About | None = None
        self.peak_bytes = 0

    def start(self, timeout_note: TextIO = sys.stderr) -> About:
        """Start the process and return what it says once it is warm."""
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.about = About(**self._hear())
        return self.about

    def turn(self, seconds: float) -> Turn:
        """Let it take as many steps as fill ``seconds``, one at least."""
        import psutil

        assert self._process is not None
        assert self._process.stdin is not None
        assert self.about is not None
        count = max(1, round(seconds / max(self.about.step_seconds, 1e-6)))
        before = psutil.cpu_times()
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        heard = self._hear()
        after = psutil.cpu_times()
        self.peak_bytes = heard.pop("peak_bytes")
        busy = sum(getattr(after, key) - getattr(before, key) for key in ("user", "system"))
        heard["others"] = max(0.0, busy - heard["cpu_seconds"]) / heard["seconds"]
        heard["steps"] = tuple(heard["steps"])
        turn = Turn(**heard)
        self.about.step_seconds = turn.seconds / len(turn.steps)
        return turn

    def end(self) -> None:
        """Close the gate for good; the process ends."""
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def _hear(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self.end()
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            reason = last[-1] if last else "nothing was written"
            raise SideFailedError(f"{self.name} ended with code {code}: {reason}")
        heard: dict[str, Any] = json.loads(line)
        return heard


class SideFailedError(RuntimeError):
    """A side cannot be measured here; the message says why."""


@contextlib.contextmanager
def ending(sides: list[Side]) -> Iterator[None]:
    """End every side that was started, whatever happens."""
    try:
        yield
    finally:
        for side in sides:
            side.end()
