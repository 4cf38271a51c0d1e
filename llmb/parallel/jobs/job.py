"""A run of many ranks: nodes, ranks per node, time limit and the arguments of llmb."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmb.parallel.jobs.site import Site

#: TCP port at which rank 0 listens.
PORT = 29500
#: Seconds between the early warning of a scheduler and the time limit.
_WARNING_S = 120


@dataclass(frozen=True)
class LaunchJob:
    """A run of ``nodes`` times ``ranks_per_node`` ranks."""

    nodes: int
    ranks_per_node: int
    #: Arguments of llmb, for example ``("run", "--dp-shard", "8")``.
    arguments: tuple[str, ...]
    minutes: int = 60
    site: Site = field(default_factory=Site)
    #: False: the ranks compute on processors, and the job asks for no accelerator.
    on_devices: bool = True

    @property
    def command(self) -> str:
        """The arguments of llmb, quoted for a shell."""
        return shlex.join(self.arguments)

    @property
    def limit(self) -> str:
        """The time limit, hours:minutes:seconds."""
        return f"{self.minutes // 60:02}:{self.minutes % 60:02}:00"

    @property
    def warning_s(self) -> int:
        """Seconds between early warning and limit: 120, or a quarter of a job under 8 minutes."""
        return min(_WARNING_S, self.minutes * 60 // 4)


def with_verb(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return ``arguments`` with ``run`` in front, if the first argument is an option."""
    return ("run", *arguments) if not arguments or arguments[0].startswith("-") else (*arguments,)
