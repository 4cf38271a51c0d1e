"""How quiet the host was: what keeps a judge from blaming a run for an odd speed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from llmb.measure.summary import steal_share
from llmb.records.system import HostLoad

_BUSY_BEFORE = 0.5  # of the cores, in the last minute before the run: other programs
_BUSY_AFTER = 1.25  # of the cores: a run keeps no more than all of them busy
_STEAL = 0.02


@dataclass(frozen=True)
class Host:
    """The record's readings of the host: before the run, after it, and the cores it may use."""

    before: HostLoad
    after: HostLoad
    cores: int

    def disturbances(self) -> tuple[str, ...]:
        """Return what else the host did or may have done; nothing where it is known to be quiet."""
        return tuple(self._disturbances())

    def _disturbances(self) -> Iterator[str]:
        before, after = self.before, self.after
        if before.load_1min is None or after.load_1min is None:
            yield "its load is not known"
        elif before.load_1min > _BUSY_BEFORE * self.cores:
            yield f"load {before.load_1min:.1f} on {self.cores} cores before the run"
        elif after.load_1min > _BUSY_AFTER * self.cores:
            yield f"load {after.load_1min:.1f} on {self.cores} cores after the run"
        share = steal_share(before, after)
        if share is not None and share > _STEAL:
            yield f"{share:.0%} of its CPU time went to other machines"
        if before.throttled_periods != after.throttled_periods:
            yield "the container's CPU quota stopped it"
