"""Measures the links between the ranks of a run, before the first worker starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

from llmb import clock
from llmb.config import RankAddress, RunConfig, is_cpu
from llmb.errors import LlmbError, RunFailedError
from llmb.measure import host, links
from llmb.records.interconnect import CollectiveKind, HostLinks, Interconnect
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.wire.child import Child
from llmb.wire.measurements import Collected, CollectivesOrder

#: The collectives that every kind of sharing a model uses: DDP sums, FSDP and TP gather.
KINDS: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather")
MODULE = "llmb.processes.collectives"
#: Seconds for the collectives once all ranks have met. They take 2; a library may hang.
_LIMIT_S = 60.0
#: Unlike the number of any repeat or trial: repeats count from 0, trials from -1 downwards.
_REPEAT = 1_000_000


def order(
    negotiated: Negotiated,
    config: RunConfig,
    place: RankAddress,
    rank_timeout_s: float,
    kinds: tuple[CollectiveKind, ...] = KINDS,
    described: HostLinks | None = None,
) -> CollectivesOrder:
    """Return the order for the measuring process of the rank at ``place``."""
    return CollectivesOrder(
        config=for_children(config),
        place=place,
        repeat=_REPEAT,
        rank_timeout_s=rank_timeout_s,
        kinds=kinds,
        with_plugin=not is_cpu(negotiated.offer.device),
        host=host.host_digest(),
        links=described,
    )


def measure(
    negotiated: Negotiated,
    config: RunConfig,
    place: RankAddress,
    rank_timeout_s: float,
    log: IO[bytes],
    note: Callable[[str], None],
) -> Interconnect:
    """Return the links between all ranks: each rank calls this function at the same time.

    A failure after the ranks have met is told to ``note``, and the result has the rates measured
    before the failure. If the process has died, the result has no rates, and this host alone.

    Raises:
        LlmbError: the ranks did not meet, or differ; the run could not begin either.
    """
    described = links.describe() if place.local_rank == 0 or place.leads else None
    asked = order(negotiated, config, place, rank_timeout_s, described=described)
    began_ns, has_met = clock.now_ns(), False
    collected: Collected | None = None
    try:
        with Child(MODULE, negotiated.terms.environment, log) as child:
            child.send(asked)
            while collected is None:
                message = child.receive(_LIMIT_S if has_met else None)
                if message is None:
                    raise RunFailedError(f"they did not end within {_LIMIT_S:.0f} s")
                has_met = True
                if isinstance(message, Collected):
                    collected = message
    except LlmbError as error:
        if not has_met:
            raise
        note(f"the links between the ranks were not measured: {error}")
    if collected is not None and collected.trouble:
        note(f"not all links between the ranks were measured: {collected.trouble}")
    own = described or HostLinks()
    return Interconnect(
        library=collected.library if collected is not None and collected.rates else None,
        with_plugin=asked.with_plugin,
        seconds=(clock.now_ns() - began_ns) / 1e9,
        rates=() if collected is None else collected.rates,
        hosts=(own,) if collected is None else _with_own(collected.hosts, own),
    )


def _with_own(hosts: tuple[HostLinks, ...], own: HostLinks) -> tuple[HostLinks, ...]:
    """Return ``hosts`` with this supervisor's own description of the first host, rank 0's."""
    if not hosts:
        return (own,)
    return (own.model_copy(update={"ranks": hosts[0].ranks}), *hosts[1:])
