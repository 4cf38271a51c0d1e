"""The short-lived process, started on each rank, that measures the speed of collectives.

The process has no model and writes no record. On a processor with gloo, the process holds no
plugin: llmb's own code is then all that runs. Elsewhere the process holds the plugin's backend and
environment, like ``ceilings``.
"""

from __future__ import annotations

import traceback

from llmb.config import RunConfig
from llmb.errors import RunFailedError, UnavailableError
from llmb.plugin.backend import Backend
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.plugin.manager import Plugin
from llmb.records.interconnect import CollectiveRate, HostLinks
from llmb.wire.channel import Channel, serve
from llmb.wire.measurements import Collected, CollectivesOrder
from llmb.wire.messages import Failure, Phase

_MOST_CHARACTERS = 2000  # of an error's message; the traceback is in the log


def take_part(channel: Channel) -> None:
    """Time collectives with the other ranks; every rank reports the common rates.

    After an error the rates measured before the error are reported, with the error. Example: a
    library with all-reduce and without all-gather.

    Ranks above 0 report after the store of rank 0 has closed: the next process of the rank then
    cannot meet the old store.

    Raises:
        RunFailedError: another rank did not come, or differs from rank 0.
        UnavailableError: the device has no communication library, such as NCCL.
    """
    order = channel.expect(CollectivesOrder)
    config = order.config
    backend = _plugins(config) if order.with_plugin else CpuBackend()
    library = backend.distributed_backend
    if library is None:
        raise UnavailableError(
            f"plugin {config.plugin!r} names no library for ranks to communicate with, or this "
            "torch was built without distributed: use one rank"
        )
    from llmb.parallel.bandwidth import measure
    from llmb.parallel.ranks import Ranks

    def give_up(reason: str) -> None:
        channel.send(Failure(error=RunFailedError.__name__, message=reason))

    rates: list[CollectiveRate] = []
    hosts: tuple[HostLinks, ...] | None = None
    trouble = ""
    ranks = Ranks(order.place, library, order.repeat, order.rank_timeout_s, give_up)
    try:
        with ranks:
            ranks.agree(config)
            links = None if order.links is None else order.links.model_dump()
            hosts = _hosts(ranks.gather((order.host, links)))
            channel.send(Phase(name="timing collectives"))
            rates.extend(measure(backend, config.device, ranks, order.kinds))
            ranks.gather(None)  # no rank leaves before all have measured
    except Exception as error:  # a library of a vendor may raise anything
        if hosts is None:
            raise
        traceback.print_exc()
        trouble = (str(error) or type(error).__name__)[:_MOST_CHARACTERS]
    ranks.outlive_store()
    channel.send(Collected(library=ranks.library, rates=tuple(rates), hosts=hosts, trouble=trouble))


def _plugins(config: RunConfig) -> Backend:
    """Return the plugin's backend, with the plugin's environment set."""
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    plugin.set_environment(config)
    return backend


def _hosts(every: list[tuple[str, dict[str, object] | None]]) -> tuple[HostLinks, ...]:
    """Return each host once, with its ranks; ``every`` has the host and links of each rank."""
    found: list[HostLinks] = []
    for host in dict.fromkeys(host for host, _ in every):
        ranks = [rank for rank, (each, _) in enumerate(every) if each == host]
        told = next((links for each, links in every if each == host and links is not None), {})
        found.append(HostLinks.model_validate({**told, "ranks": ranks}))
    return tuple(found)


if __name__ == "__main__":
    serve(take_part)
