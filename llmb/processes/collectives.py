"""The short-lived process, started on each rank, that measures the speed of collectives.

The process has no model and writes no record. Like ``ceilings``, the process holds the plugin's
backend and environment.
"""

from __future__ import annotations

from llmb.errors import RunFailedError, UnavailableError
from llmb.plugin.manager import Plugin
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Collected, Done, Failure, WorkOrder


def take_part(channel: Channel) -> None:
    """Time collectives with the other ranks; every rank reports the common rates.

    Raises:
        RunFailedError: another rank did not come, or failed.
        UnavailableError: the device has no communication library, such as NCCL.
    """
    order = channel.expect(WorkOrder)
    config, place = order.config, order.place
    assert place is not None, "collectives are between ranks"
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    plugin.set_environment(config)
    library = backend.distributed_backend
    if library is None:
        raise UnavailableError(
            f"plugin {config.plugin!r} names no library for ranks to communicate with, or this "
            "torch was built without distributed"
        )
    from llmb.parallel.bandwidth import measure
    from llmb.parallel.ranks import Ranks

    def give_up(reason: str) -> None:
        channel.send(Failure(error=RunFailedError.__name__, message=reason))

    with Ranks(place, library, 0, order.rank_timeout_s, give_up) as ranks:
        ranks.agree(config)
        channel.send(Collected(rates=measure(backend, config.device, ranks)))
        channel.expect(Done)  # rank 0 keeps the store until all have answered


if __name__ == "__main__":
    serve(take_part)
