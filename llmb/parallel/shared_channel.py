"""The supervisor's orders, for every rank: rank 0 hears them and passes each on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmb.wire.channel import Channel
from llmb.wire.messages import Message, Phase, Tick, Worked

if TYPE_CHECKING:
    from llmb.parallel.ranks import Ranks

#: What a rank's own supervisor wants to know of it, whoever owns the record.
_OWN = (Phase, Tick, Worked)


class SharedChannel(Channel):
    """A worker's channel once it has met the other ranks.

    All ranks do the same in the same order, so all ask for orders equally often: each ``receive``
    is one message of rank 0's supervisor, broadcast. Of what the others say, their own supervisors
    are told that they live; rank 0's hears rank 0.
    """

    __slots__ = ("_own", "_ranks")

    def __init__(self, own: Channel, ranks: Ranks) -> None:
        """Share ``own`` of rank 0 with ``ranks``."""
        self._own, self._ranks = own, ranks
        self.received_ns = 0

    def send(self, message: Message) -> None:
        """Tell this rank's supervisor ``message``, if it wants to know."""
        if self._ranks.place.leads or isinstance(message, _OWN):
            self._own.send(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message of rank 0's supervisor: a collective call."""
        message = self._own.receive(timeout_s) if self._ranks.place.leads else None
        self.received_ns = self._own.received_ns
        found: Message | None = self._ranks.from_leader(message)
        return found

    def pending(self) -> bool:
        """Tell whether something can be read from this rank's own supervisor without waiting."""
        return self._own.pending()

    def close(self) -> None:
        """Close this end."""
        self._own.close()
