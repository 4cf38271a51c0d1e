"""A child that reports nothing for long is shown to be alive: what it computes, and how busily.

Nothing is measured in the first fifty seconds of a silence, and one reading in ten seconds after
that, so steps of ordinary length are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llmb.measure import clock, host
from llmb.supervision.memory import is_cpu

#: From here on a silence is worth a word.
LONG_S = 60.0
#: What a child does is measured over so many seconds at least.
_STRETCH_S = 10.0


@dataclass(frozen=True)
class Silence:
    """How long a child has shown nothing, and what its processes do meanwhile."""

    #: ``worker``, ``honest run`` or ``reference run``.
    who: str
    since_s: float
    #: Cores that it and its descendants kept busy of late, None where that is not known.
    busy_cores: float | None
    #: Whether it computes on the processor; an accelerator may be busy while no core is.
    on_cpu: bool
    #: The step that is being computed, from 0; None where it is none.
    step: int | None = None
    #: Minutes the device's compiler takes for a program, where its backend says that it is slow.
    compiling_min: float | None = None


class _Process(Protocol):
    @property
    def module(self) -> str: ...
    @property
    def pid(self) -> int: ...


class Vigil:
    """Watches over a child while nothing arrives from it."""

    def __init__(
        self, child: _Process, device: str, minutes_per_program: float | None = None
    ) -> None:
        """Begin; ``child`` computes on ``device``, whose compiler may take minutes."""
        self._child, self._on_cpu = child, is_cpu(device)
        self._compiling_min = minutes_per_program
        self.restart()

    def restart(self) -> None:
        """Note that something was shown just now."""
        self._since_ns = clock.now_ns()
        self._next_ns = self._since_ns + int((LONG_S - _STRETCH_S) * 1e9)
        self._read_ns = 0
        self._cpu_s: float | None = None
        self._busy: float | None = None

    def moment(self, step: int | None = None) -> Silence | None:
        """Return the silence once it is a long one; ``step`` is being computed, if any."""
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
        else:  # a descendant that has ended takes its seconds along
            self._busy = max(0.0, self._cpu_s - before) * 1e9 / (now - self._read_ns)
        self._read_ns, self._next_ns = now, now + int(_STRETCH_S * 1e9)
