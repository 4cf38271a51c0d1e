"""A calibrator that is started before its turn, so that its imports overlap the work of others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from llmb.wire.channel import Child

_CEILINGS = "llmb.processes.ceilings"
#: Starts a process: module, environment variables, file for its output.
Start = Callable[[str, Mapping[str, str], IO[bytes]], Child]


@dataclass(frozen=True)
class _Waiting:
    child: Child
    variables: dict[str, str]
    output: IO[bytes]

    def end(self, log: IO[bytes] | None = None) -> None:
        """End the process; what it wrote is appended to ``log``."""
        with self.output:
            self.child.end()
            if log is not None:
                self.output.seek(0)
                log.write(self.output.read())


class Standby:
    """At most one calibrator that waits for an order; leaving the context ends it.

    Importing torch takes two seconds, and the next calibrator can have its imports behind it when
    its turn comes. Until then it loads no plugin and touches no device. It holds no secret: a
    calibrator runs the plugin's code in any case.
    """

    def __init__(self, start: Start = Child) -> None:
        """Begin with none; ``start`` makes a process."""
        self._start = start
        self._waiting: _Waiting | None = None

    def __enter__(self) -> Standby:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the calibrator that was never needed."""
        if self._waiting is not None:
            self._waiting.end()

    def prepare(self, variables: Mapping[str, str]) -> None:
        """Start the next calibrator with the environment ``variables``, unless one waits."""
        if self._waiting is None:
            output = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process has ended
            child = self._start(_CEILINGS, variables, output)
            self._waiting = _Waiting(child, dict(variables), output)

    @contextmanager
    def calibrator(self, variables: Mapping[str, str], log: IO[bytes]) -> Iterator[Child]:
        """Give a calibrator that has introduced itself; at the end it is gone.

        It is the one that waits where that has the same ``variables``, else a new one. Its output
        is in ``log`` at the end.

        Raises:
            LlmbError: it did not start.
        """
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting.variables != dict(variables):
            waiting.end()
            waiting = None
        child = waiting.child if waiting else self._start(_CEILINGS, variables, log)
        try:
            child.begin()
            yield child
        finally:
            if waiting is not None:
                waiting.end(log)
            else:
                child.end()
