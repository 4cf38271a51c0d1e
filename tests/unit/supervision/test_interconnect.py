"""The links between ranks: whose word they are, and what a failure costs."""

from __future__ import annotations

import io
from typing import Any

import pytest

from llmb.config import RankAddress
from llmb.errors import LlmbError, RunFailedError
from llmb.records.interconnect import CollectiveRate, HostLinks, NumaNode
from llmb.supervision import interconnect
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.wire.measurements import Collected, CollectivesOrder
from llmb.wire.messages import Phase, Terms
from tests.unit.builders_runtime import offer, run_config

CONFIG = run_config()
MET = Phase(name="timing collectives")
RATE = CollectiveRate(kind="all_reduce", bytes=64, seconds=1e-3, bus_bytes_per_second=64e3)
OURS = HostLinks(numa=(NumaNode(node=0, cores=8),))
THEIRS = HostLinks(numa=(NumaNode(node=0, cores=9999),))
COLLECTED = Collected(
    library="gloo",
    rates=(RATE,),
    hosts=(THEIRS.model_copy(update={"ranks": (0, 1)}), HostLinks(ranks=(2, 3))),
)


class Scene:
    """A fake measuring process: the order, and the messages or the error that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *said: Any) -> None:
        self.said, self.sent, self.notes = [*said], [], []
        self.limits: list[float | None] = []
        monkeypatch.setattr(interconnect, "Child", self.child)
        monkeypatch.setattr(interconnect.links, "describe", lambda: OURS)

    def child(self, module: str, environment: Any, log: Any) -> Any:
        scene = self

        class Child:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def send(self, order: CollectivesOrder) -> None:
                scene.sent.append(order)

            def receive(self, timeout_s: float | None) -> Any:
                scene.limits.append(timeout_s)
                message = scene.said.pop(0)
                if isinstance(message, LlmbError):
                    raise message
                return message

        return Child()

    def measure(self, rank: int = 0, local_rank: int = 0, device: str = "cpu") -> Any:
        place = RankAddress(
            rank=rank, world_size=4, local_rank=local_rank, local_world_size=2, host="h", port=1
        )
        terms = Terms(environment={}, warmup_steps=1, facts={}, peak=None)
        negotiated = Negotiated(offer(device=device), CONFIG, terms, (), "")
        return interconnect.measure(negotiated, CONFIG, place, 7.0, io.BytesIO(), self.notes.append)


def test_rates_come_from_the_process_and_the_own_host_from_the_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch, MET, COLLECTED)
    found = scene.measure()
    assert (found.library, found.rates, scene.notes) == ("gloo", (RATE,), [])
    assert [host.ranks for host in found.hosts] == [(0, 1), (2, 3)]
    assert found.hosts[0].numa == OURS.numa
    (order,) = scene.sent
    assert (order.config, order.links, order.rank_timeout_s) == (for_children(CONFIG), OURS, 7.0)
    assert scene.limits == [None, 60.0], "rank 0 may measure ceilings for long"


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("fast:0", True)])
def test_a_plugin_is_held_only_where_the_library_needs_it(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: bool
) -> None:
    scene = Scene(monkeypatch, MET, COLLECTED)
    assert scene.measure(device=device).with_plugin is expected
    assert scene.sent[0].with_plugin is expected


def test_one_rank_of_a_host_describes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, MET, COLLECTED)
    scene.measure(rank=3, local_rank=1)
    assert scene.sent[0].links is None


@pytest.mark.parametrize("failure", [RunFailedError("gloo: closed by 10.1.2.3"), None])
def test_a_failure_after_the_ranks_met_is_a_note_and_names_nobody_in_the_record(
    monkeypatch: pytest.MonkeyPatch, failure: LlmbError | None
) -> None:
    scene = Scene(monkeypatch, MET, failure)
    found = scene.measure()
    assert (found.library, found.rates, found.hosts) == (None, (), (OURS,))
    (note,) = scene.notes
    assert note.endswith("10.1.2.3" if failure else "within 60 s")
    assert "10.1.2.3" not in found.model_dump_json()


def test_rates_before_a_failure_are_kept_and_the_failure_is_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = COLLECTED.model_copy(update={"trouble": "no all-gather"})
    scene = Scene(monkeypatch, MET, cut)
    found = scene.measure()
    assert (found.library, found.rates, len(found.hosts)) == ("gloo", (RATE,), 2)
    assert scene.notes == ["not all links between the ranks were measured: no all-gather"]


def test_ranks_that_do_not_meet_end_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, RunFailedError("rank 3 did not come"))
    with pytest.raises(RunFailedError, match="rank 3 did not come"):
        scene.measure()
    assert scene.notes == []
