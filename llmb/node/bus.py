"""Starts one process per device and times collectives between the processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import NoneType
from typing import get_args

from llmb import clock
from llmb.config import Parallelism, RankAddress
from llmb.errors import RunFailedError
from llmb.parallel.place import free_port
from llmb.records.interconnect import CollectiveKind, CollectiveRate
from llmb.supervision import interconnect, selection
from llmb.supervision.negotiation import Negotiated
from llmb.wire.child import Child
from llmb.wire.measurements import Collected, CollectivesOrder
from llmb.wire.messages import Phase

#: Seconds that a rank waits for another rank.
RANK_TIMEOUT_S = 60.0


def time_collectives(
    negotiated: Negotiated, count: int, limit_s: float, waiting: Callable[[], None]
) -> tuple[CollectiveRate, ...]:
    """Return the rates of collectives between the first ``count`` devices, one rank per device.

    ``waiting`` is called about once a second. Example: ``count`` 4 times ``all_reduce`` and the
    other collectives between 4 ranks.

    Raises:
        LlmbError: a rank failed (the message gives the rank's number), or the ranks took longer
            than ``limit_s`` seconds.
    """
    deadline = clock.now_ns() + int(limit_s * 1e9)
    with ExitStack() as stack, tempfile.TemporaryFile() as log:
        places, children = [*_places(count, free_port())], []
        for place in places:
            variables = {**negotiated.terms.environment, **_as_torchrun(place)}
            children.append(Child(interconnect.MODULE, variables, log))
            stack.callback(children[-1].end)
        for place, child in zip(places, children, strict=True):
            child.begin()
            child.send(_order(negotiated, place))
        rates: tuple[CollectiveRate, ...] = ()
        for child in children:
            while isinstance(message := child.receive(1.0), (Phase, NoneType)):
                waiting()
                if clock.now_ns() > deadline:
                    raise RunFailedError(f"they did not end within {limit_s:.0f} s")
            if not isinstance(message, Collected):
                raise RunFailedError(f"{child.module} said {message.kind!r} out of turn")
            if message.trouble:
                raise RunFailedError(message.trouble)
            rates = message.rates  # every rank reports the rates of the slowest rank
    return rates


def _order(negotiated: Negotiated, place: RankAddress) -> CollectivesOrder:
    config = selection.at(place, negotiated.offer, negotiated.config)
    mesh = Parallelism(dp_replicate=place.world_size)
    ours = config.model_copy(update={"parallelism": mesh})
    return interconnect.order(negotiated, ours, place, RANK_TIMEOUT_S, get_args(CollectiveKind))


def _places(count: int, port: int) -> Iterator[RankAddress]:
    """Yield the addresses of ``count`` ranks on this host."""
    for rank in range(count):
        yield RankAddress(
            rank=rank,
            world_size=count,
            local_rank=rank,
            local_world_size=count,
            host="127.0.0.1",
            port=port,
        )


def _as_torchrun(place: RankAddress) -> dict[str, str]:
    """Return torchrun's environment variables of a rank, such as ``RANK=1``."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
    }
