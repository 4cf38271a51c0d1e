"""The other ranks, as the harness talks to them: over gloo, beside what the model communicates."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

import llmb
from llmb.config import Frozen, Place, RunConfig
from llmb.errors import RunFailedError
from llmb.reference.pins import actual_digests, reference_digest

#: Of a wait for a rank whose connection is there: it answers at once, or it hangs.
_NAMING_S = 5.0


class Sameness(Frozen):
    """What all ranks must have alike."""

    llmb: str
    reference: str
    torch: str
    python: str
    config: RunConfig


class Ranks:
    """One process group for the model, and one of gloo for the harness."""

    def __init__(self, place: Place, backend: str, repeat: int, timeout_s: float) -> None:
        """Meet the other ranks of repeat number ``repeat``; wait ``timeout_s`` for each message.

        Raises:
            RunFailedError: they did not all come.
        """
        self.place, self._limit = place, timedelta(seconds=timeout_s)
        hosting = place.leads and not place.store_is_there
        try:
            store = TCPStore(
                place.host,
                place.port,
                place.world_size,
                hosting,
                self._limit,
                wait_for_workers=False,
            )
            dist.init_process_group(
                backend,
                store=PrefixStore(f"llmb/{repeat}", store),
                rank=place.rank,
                world_size=place.world_size,
                timeout=self._limit,
            )
            self._control = dist.new_group(backend="gloo", timeout=self._limit)
        except (RuntimeError, ValueError) as error:
            raise RunFailedError(
                f"rank {place.rank} did not meet the other {place.world_size - 1} at "
                f"{place.host}:{place.port} within {timeout_s:.0f} s ({_first_line(error)})"
            ) from error

    def agree(self, config: RunConfig) -> RunConfig:
        """Return the run that rank 0 was asked for, on this rank's device.

        Raises:
            RunFailedError: another rank has another version or was asked for another run.
        """
        mine = Sameness(
            llmb=llmb.__version__,
            reference=reference_digest(actual_digests()),
            torch=str(torch.__version__),
            python=sys.version.split()[0],
            config=config,
        )
        every: list[Any] = self.gather(mine.model_dump(mode="json"))
        for rank, theirs in enumerate(every[1:], start=1):
            other = _differences(every[0], theirs)
            if other:
                raise RunFailedError(f"rank {rank} is not as rank 0: {'; '.join(other)}")
        leading = RunConfig.model_validate(every[0]["config"])
        return leading.model_copy(update={"device": config.device})

    def gather(self, value: object) -> list[Any]:
        """Return what every rank gives, in their order; a collective call."""
        found: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def from_leader(self, value: object) -> Any:
        """Return what rank 0 gives; a collective call."""
        given = [value]
        dist.broadcast_object_list(given, src=0, group=self._control)
        return given[0]

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of every rank's scalar, float32 on the CPU; a collective call."""
        total = value.detach().to("cpu", torch.float64)
        dist.all_reduce(total, group=self._control)
        return (total / self.place.world_size).float()

    def total(self, shown: Tensor) -> Tensor:
        """Return the sum of what every rank shows, on the CPU; a collective call."""
        found = shown.detach().to("cpu", copy=True)
        dist.all_reduce(found, group=self._control)
        return found

    def missing(self) -> tuple[int, ...]:
        """Return the ranks that do not answer: rank 0 asks, and every sound rank answers."""
        try:
            dist.monitored_barrier(
                self._control, timedelta(seconds=_NAMING_S), wait_all_ranks=self.place.leads
            )
        except RuntimeError as error:
            return _ranks_in(str(error))
        return ()

    def leave(self) -> None:
        """End both groups, without waiting for anybody."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _differences(leading: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    own = {"seed", "device"}  # drawn by each, and counted on each host
    found = [
        f"{name} {theirs[name]} instead of {leading[name]}"
        for name in leading
        if name != "config" and theirs[name] != leading[name]
    ]
    asked, given = leading["config"], theirs["config"]
    found += [
        f"{name} {given[name]!r} instead of {asked[name]!r}"
        for name in asked
        if name not in own and given[name] != asked[name]
    ]
    return found


def _ranks_in(text: str) -> tuple[int, ...]:
    """Return the ranks that the message of a monitored barrier names."""
    _, _, tail = text.partition("Ranks ")
    digits = tail.partition(" failed")[0].replace(",", " ").split()
    return tuple(int(word) for word in digits if word.isdigit())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
