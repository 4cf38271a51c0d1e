"""Rank 0's supervisor is heard by all ranks; of what the others say, its own hears life signs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from llmb.parallel.shared_channel import SharedChannel
from llmb.wire.messages import EvidenceFile, Paused, Phase, Ready, Tick, Worked


class Own:
    """A rank's channel to its own supervisor."""

    received_ns = 77

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.asked = 0
        self.closed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float | None = None) -> Any:
        self.asked += 1
        return "an order"

    def pending(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def shared(leads: bool) -> tuple[Any, Own, list[Any]]:
    own, given = Own(), list[Any]()

    def from_leader(value: Any) -> Any:
        given.append(value)
        return "an order"

    ranks = SimpleNamespace(place=SimpleNamespace(leads=leads), from_leader=from_leader)
    return SharedChannel(own, ranks), own, given  # type: ignore[arg-type]


LIFE = (Phase(name="stepping"), Tick(index=0, ns=1), Worked(steps=3))
FOR_RANK_0 = (Ready(), Paused(index=0), EvidenceFile(name="a", sha256="0" * 64))


@pytest.mark.parametrize("message", [*LIFE, *FOR_RANK_0], ids=lambda message: message.kind)
def test_rank_0_says_everything_and_the_others_that_they_live(message: Any) -> None:
    for leads in (True, False):
        channel, own, _ = shared(leads)
        channel.send(message)
        assert (own.sent == [message]) is (leads or message in LIFE)


@pytest.mark.parametrize(("leads", "asked"), [(True, 1), (False, 0)])
def test_orders_are_rank_0s_supervisors_for_all(leads: bool, asked: int) -> None:
    channel, own, given = shared(leads)
    assert channel.receive() == "an order"
    assert (own.asked, given) == (asked, ["an order" if leads else None])
    assert channel.received_ns == 77


def test_the_end_that_is_closed_is_this_ranks_own() -> None:
    channel, own, _ = shared(False)
    assert channel.pending()
    channel.close()
    assert own.closed
