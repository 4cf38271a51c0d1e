"""Communication of the harness between ranks: over gloo, separate from the model's backend."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

import llmb
from llmb import clock
from llmb.config import Frozen, RankAddress, RunConfig
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError, is_out_of_memory
from llmb.parallel import flight_recorder
from llmb.parallel.lookout import Lookout, announce
from llmb.parallel.missing import key, named
from llmb.parallel.shards import whole
from llmb.reference.pins import actual_digests, reference_digest

#: Extra seconds for ranks above 0 to connect, because rank 0 opens the store and may come late.
_AHEAD_S = 600.0
#: Seconds between two requests of a rank, and most requests per second of all ranks to the store.
_ASK_S, _ASKS_PER_S = 0.1, 4000
#: Longest wait for the end of rank 0's store, and seconds between two looks.
_CLOSING_S, _CLOSING_ASK_S = 10.0, 0.02
#: Extra seconds for ranks above 0 to read rank 0's list of missing ranks.
_WORD_S = 10.0
#: Key of rank 0's answer: empty if all ranks have come, else the missing ranks.
_MET = "met"
#: Key of rank 0's folder for the last collective calls of each rank.
_CALLS = "calls"
#: Words in errors of communication libraries when a rank is gone or late.
_OF_OTHERS = (
    *("gloo", "nccl", "timed out", "pair closure"),
    *("connection reset", "connection closed", "broken pipe"),
)


class Sameness(Frozen):
    """The versions and the configuration that must be equal on all ranks."""

    llmb: str
    reference: str
    torch: str
    python: str
    config: RunConfig


class Ranks:
    """The model's process group and the harness's gloo group; a context manager ends both."""

    def __init__(
        self,
        place: RankAddress,
        backend: str,
        repeat: int,
        timeout_s: float,
        give_up: Callable[[str], None],
        calls_folder: str = "",
    ) -> None:
        """Connect all ranks of repeat number ``repeat``; wait ``timeout_s`` for each message.

        ``give_up`` is called from a second thread if a remote rank ends the run. When a run fails,
        every rank writes its last collective calls to rank 0's ``calls_folder``.

        Raises:
            RunFailedError: some rank did not come in time.
        """
        self.place, self.limit = place, timedelta(seconds=timeout_s)
        try:
            store = _store(place, self.limit, hosting=place.leads and not place.store_is_there)
            beside = PrefixStore(f"llmb/{repeat}/lookout", _store(place, self.limit))
            self._beside = beside
            if place.leads:
                beside.set(_CALLS, calls_folder)
            _wait_for_all(place, beside, timeout_s)
            self._calls_folder = beside.get(_CALLS).decode()
            dist.init_process_group(
                backend,
                store=PrefixStore(f"llmb/{repeat}", store),
                rank=place.rank,
                world_size=place.world_size,
                timeout=self.limit,
            )
            #: The backend of the model's process group. Example: ``nccl``.
            self.library: str = dist.get_backend()
            self._control = dist.new_group(backend="gloo", timeout=self.limit)
            self._give_up = give_up
            self.lookout = Lookout(place.rank, place.world_size, beside, timeout_s, self._ended)
        except (RuntimeError, ValueError) as error:
            if "EADDRINUSE" in str(error):
                raise RunFailedError(
                    f"rank {place.rank} cannot listen at {place.host}:{place.port}, where another "
                    "program does: set MASTER_PORT to a free port"
                ) from error
            raise RunFailedError(
                f"rank {place.rank} did not meet the other {place.world_size - 1} at "
                f"{place.host}:{place.port} within {timeout_s:.0f} s ({_first_line(error)})"
            ) from error

    def agree(self, config: RunConfig) -> RunConfig:
        """Return rank 0's configuration with this rank's device.

        Raises:
            RunFailedError: a rank has a version or a configuration different from rank 0's.
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
        """Return the ``value`` of every rank, in rank order: a collective call."""
        found: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(found, value, group=self._control)
        return found

    def from_leader(self, value: object) -> Any:
        """Return the ``value`` of rank 0: a collective call."""
        given = [value]
        dist.broadcast_object_list(given, src=0, group=self._control)
        return given[0]

    def mean(self, value: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the mean of every rank's scalar, as ``dtype`` on the CPU: a collective call."""
        total = whole(value.detach()).to("cpu", torch.float64)
        dist.all_reduce(total, group=self._control)
        return (total / self.place.world_size).to(dtype)

    def total(self, shown: Tensor) -> Tensor:
        """Return the sum of every rank's tensor, on the CPU: a collective call."""
        found = shown.detach().to("cpu", copy=True)
        dist.all_reduce(found, group=self._control)
        return found

    def one(self, shown: Tensor, rank: int) -> Tensor:
        """Return the tensor of ``rank``, on the CPU: a collective call."""
        found = shown.detach().to("cpu", copy=True)
        dist.broadcast(found, rank, group=self._control)
        return found

    def outlive_store(self) -> None:
        """Wait, above rank 0 and after the end of this context, until rank 0's store has closed.

        The store closes with the process of rank 0. A store that the launcher hosts stays open.
        The wait ends after 10 s at the latest.
        """
        deadline = clock.now_ns() + _CLOSING_S * 1e9
        while not (self.place.leads or self.place.store_is_there) and clock.now_ns() < deadline:
            try:
                self._beside.check([key(0)])
            except RuntimeError:  # closed
                return
            time.sleep(_CLOSING_ASK_S)

    def __enter__(self) -> Ranks:
        """Return the connected ranks."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the process groups; tell all ranks about an error of this rank.

        Raises:
            LlmbError: replaces the error of this rank, and names the rank at fault.
        """
        if isinstance(error, Exception):
            flight_recorder.keep(self._calls_folder, self.place.rank)
            said, is_own = self._cause(error), not self._is_of_others(error)
            is_named = is_own and said.partition(":")[0] == f"rank {self.place.rank}"
            raised: type[LlmbError] = RunFailedError
            if is_own and isinstance(error, LlmbError):
                # All ranks that refuse a flag end alike, whichever rank was heard first.
                raised = type(error)
            elif is_named and is_out_of_memory(error):
                raised = NotEnoughMemoryError
            # The supervisors of ranks above 0 name the rank themselves.
            if not is_named or self.place.leads:
                raise raised(said) from error
        self.lookout.end()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _ended(self, reason: str) -> None:
        flight_recorder.keep(self._calls_folder, self.place.rank)
        self._give_up(reason)
        abort_collectives()

    def _cause(self, error: Exception) -> str:
        """Return the rank at fault and its error, the same text on all ranks."""
        text, ours = _first_line(error), isinstance(error, LlmbError)
        if self._is_of_others(error):
            return self.lookout.blame(text)
        if ours and text.startswith("rank "):  # the text names its rank already
            return self.lookout.fail(text)
        kind = "" if ours else f"{type(error).__name__}: "
        return self.lookout.fail(f"rank {self.place.rank}: {kind}{text}")

    def _is_of_others(self, error: Exception) -> bool:
        """Tell whether ``error`` means that a remote rank is gone or late."""
        text = str(error).lower()
        return isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and any(word in text for word in _OF_OTHERS)
        )


def abort_collectives() -> None:
    """End the pending collective calls of this process, if the backend can.

    By PyTorch's documentation NCCL can: its kernels leave the device. Gloo of torch 2.13 ignores
    the request, so calls of gloo end with the process. No process group is left.
    """
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if abort is not None and dist.is_initialized():
        # The run has failed already, and its reason is sent: a second error would say nothing new.
        with suppress(RuntimeError, ValueError):
            abort()


def _store(place: RankAddress, limit: timedelta, *, hosting: bool = False) -> TCPStore:
    patience = limit if place.leads else limit + timedelta(seconds=_AHEAD_S)
    store = TCPStore(
        place.host, place.port, place.world_size, hosting, patience, wait_for_workers=False
    )
    store.set_timeout(limit)
    return store


def _wait_for_all(place: RankAddress, beside: Store, timeout_s: float) -> None:
    """Wait until every rank has come: rank 0 checks all ranks, and the rest wait for its answer.

    Ranks above 0 wait for rank 0 without a limit, because rank 0 first measures ceilings and
    audits the previous repeat. A lost network ends the wait with an error.

    Raises:
        RunFailedError: some rank has not come ``timeout_s`` after rank 0.
    """
    announce(place.rank, beside)
    pause_s = max(_ASK_S, place.world_size / _ASKS_PER_S)

    def come(keys: list[str], limit_s: float = math.inf) -> bool:
        deadline = clock.now_ns() + limit_s * 1e9
        while not (here := beside.check(keys)) and clock.now_ns() <= deadline:
            time.sleep(pause_s)
        return here

    come([key(0)])
    where = f"{place.host}:{place.port} within {timeout_s:.0f} s"
    if not place.leads:
        said = come([_MET], timeout_s + _WORD_S)
        reason = beside.get(_MET).decode() if said else f"rank 0 did not come to {where}"
    elif come(everybody := [key(rank) for rank in range(place.world_size)], timeout_s):
        beside.set(_MET, reason := "")
    else:
        missing = [rank for rank, one in enumerate(everybody) if not beside.check([one])]
        beside.set(_MET, reason := f"{named(missing)} did not come to {where}")
        time.sleep(2 * pause_s)  # the store ends with rank 0: leave time to read it
    if reason:
        raise RunFailedError(reason)


def _differences(leading: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """Return a phrase for each field of a dumped ``Sameness`` that differs in ``theirs``.

    Example: ``["timed_steps 21 instead of 20"]``.
    """
    own = {"seed", "device"}  # each rank draws a seed; devices are numbered per host
    found = [
        f"{name} {theirs[name]} instead of {leading[name]}"
        for name in leading
        if name != "config" and theirs[name] != leading[name]
    ]
    asked, given = (_as_asked(side["config"]) for side in (leading, theirs))
    found += [
        f"{name} {given[name]!r} instead of {asked[name]!r}"
        for name in asked
        if name not in own and given[name] != asked[name]
    ]
    return found


def _as_asked(config: dict[str, Any]) -> dict[str, Any]:
    """Return a dumped ``config`` without the fields decided by each rank's own timing.

    Every rank times whether its processor multiplies BF16 faster natively or widened to FP32. On a
    busy host two ranks may find different answers. The answers are not compared, because all ranks
    run with rank 0's ``config``.
    """
    return {**config, "precision": {**config["precision"], "native": None, "products": None}}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
