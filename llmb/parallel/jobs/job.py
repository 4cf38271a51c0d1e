"""What a job file asks a scheduler for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmb.parallel.jobs.site import Site

#: Where rank 0 is met.
PORT = 29500
#: Seconds before the time limit at which a scheduler's early warning is wished for.
_WARNING_S = 120


@dataclass(frozen=True)
class LaunchJob:
    """One run of ``nodes`` times ``ranks_per_node`` ranks."""

    nodes: int
    ranks_per_node: int
    #: What follows ``llmb``, such as ``run --dp-shard 8``.
    arguments: tuple[str, ...]
    minutes: int = 60
    site: Site = field(default_factory=Site)
    #: False: the ranks compute on processors, and need no accelerator.
    on_devices: bool = True

    @property
    def command(self) -> str:
        """The arguments of llmb as a shell takes them."""
        return shlex.join(self.arguments)

    @property
    def limit(self) -> str:
        """The time limit, hours:minutes:seconds."""
        return f"{self.minutes // 60:02}:{self.minutes % 60:02}:00"

    @property
    def warning_s(self) -> int:
        """Seconds before the limit at which llmb is warned: 120, or a quarter of a short job."""
        return min(_WARNING_S, self.minutes * 60 // 4)


def with_verb(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return ``arguments`` of llmb, with ``run`` in front where they begin with an option."""
    return ("run", *arguments) if not arguments or arguments[0].startswith("-") else (*arguments,)
