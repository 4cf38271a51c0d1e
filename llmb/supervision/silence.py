"""Signs of life of a silent child, for example the step in computation and the busy cores.

The child's CPU time is not read in the first 50 seconds of a silence, and later once in 10 seconds.
For this reason, steps of ordinary length are not disturbed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmb import clock
from llmb.config import is_cpu
from llmb.measure import host

#: Seconds after which a silence is shown to the user.
LONG_S = 60.0
#: Least number of seconds between two readings of a child's CPU time.
_STRETCH_S = 10.0


@dataclass(frozen=True)
class Silence:
    """The length of a child's silence, and the work of the child's processes meanwhile."""

    #: Name of the child: ``worker``, ``honest run`` or ``reference run``.
    who: str
    since_s: float
    #: Cores kept busy by the child and all descendants since the last reading; None if unknown.
    busy_cores: float | None
    #: Whether the child computes on the CPU; an accelerator may be busy while all cores idle.
    on_cpu: bool
    #: The step in computation, counted from 0; None between steps.
    step: int | None = None
    #: Minutes per program of the device's compiler, if the backend reports a slow compiler.
    compiling_min: float | None = None


class _Process(Protocol):
    @property
    def module(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Vigil:
    """Watches a child while no message arrives from the child."""

    def __init__(
        self, child: _Process, device: str, minutes_per_program: float | None = None
    ) -> None:
        """Begin to watch ``child`` on ``device``.

        ``minutes_per_program``: minutes of the device's compiler for a program; None if fast.
        """
        self._child, self._on_cpu = child, is_cpu(device)
        self._compiling_min = minutes_per_program
        self.restart()

    def restart(self) -> None:
        """Note that a report was shown just now."""
        self._since_ns = clock.now_ns()
        self._next_ns = self._since_ns + int((LONG_S - _STRETCH_S) * 1e9)
        self._read_ns = 0
        self._cpu_s: float | None = None
        self._busy: float | None = None

    def moment(self, step: int | None = None) -> Silence | None:
        """Return the silence after ``LONG_S``, else None; ``step`` is the step in computation."""
        now = clock.now_ns()
        if now >= self._next_ns:
            self._read(now)
        since_s = (now - self._since_ns) / 1e9
        if since_s < LONG_S:
            return None
        who = self._child.module.rpartition(".")[2].replace("_", " ")
        return Silence(who, since_s, self._busy, self._on_cpu, step, self._compiling_min)

    def _read(self, now: int) -> None:
        before, self._cpu_s = self._cpu_s, host.cpu_s_of(self._child.pid)
        if before is None or self._cpu_s is None:
            self._busy = None
        else:  # the CPU time of an ended descendant can go missing
            self._busy = max(0.0, self._cpu_s - before) * 1e9 / (now - self._read_ns)
        self._read_ns, self._next_ns = now, now + int(_STRETCH_S * 1e9)
