"""The supervisor's orders for every rank: rank 0 receives each order and broadcasts the order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmb.wire.channel import Channel
from llmb.wire.messages import Message, Phase, Tick, Worked

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

#: Messages that every rank sends to its own supervisor, including ranks above 0.
_OWN = (Phase, Tick, Worked)


class SharedChannel(Channel):
    """A worker's channel after the ranks have connected.

    All ranks run the same steps in the same order and call ``receive`` equally often. Each
    ``receive`` broadcasts a message from rank 0's supervisor. Rank 0 sends every message to its
    supervisor. Ranks above 0 send only signs of life, such as ``Tick``.
    """

    __slots__ = ("_own", "_ranks")

    def __init__(self, own: Channel, ranks: Ranks) -> None:
        """Share the channel ``own`` of rank 0 with ``ranks``."""
        self._own, self._ranks = own, ranks
        self.received_ns = 0

    def send(self, message: Message) -> None:
        """Send ``message`` to this rank's supervisor; above rank 0, only a sign of life."""
        if self._ranks.place.leads or isinstance(message, _OWN):
            self._own.send(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message from rank 0's supervisor: a collective call."""
        message = self._own.receive(timeout_s) if self._ranks.place.leads else None
        self.received_ns = self._own.received_ns
        found: Message | None = self._ranks.from_leader(message)
        return found

    def pending(self) -> bool:
        """Tell whether a message from this rank's own supervisor can be read without waiting."""
        return self._own.pending()

    def close(self) -> None:
        """Close this end."""
        self._own.close()
