"""Another rank's supervisor: a worker for each repeat, and an error that says whose it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmb.config import RankAddress
from llmb.errors import NotEnoughMemoryError, RunFailedError
from llmb.parallel.place import UNREACHABLE
from llmb.supervision import following
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.run_phases import Silent
from llmb.wire.messages import Phase, Terms, Worked, WorkOrder
from tests.unit.builders_runtime import TINY, offer, run_config

CONFIG = run_config(shape_overrides=TINY, repeats=3)
PLACE = RankAddress(
    rank=2, world_size=4, local_rank=0, local_world_size=2, host="localhost", port=29500
)
OFFERED = Negotiated(
    offer(), CONFIG, Terms(environment={"ACME": "1"}, warmup_steps=1, facts={}, peak=None), (), ""
)


class Watched(Silent):
    """A display that keeps what workers say."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def message(self, message: Any) -> None:
        self.messages.append(message)


class Scene:
    """Fake workers: what each was sent, and what it says."""

    def __init__(self) -> None:
        self.orders: list[WorkOrder] = []
        self.started: list[tuple[str, dict[str, str]]] = []
        self.folders: list[bool] = []
        self.slept: list[float] = []
        self.error: Exception | None = None
        self.measured: list[RankAddress] = []
        self.unmet: Exception | None = None

    def measure(self, negotiated: Any, config: Any, place: Any, *_: Any) -> None:
        self.measured.append(place)
        if self.unmet is not None:
            raise self.unmet

    def child(self, module: str, environment: Any, log: Any) -> Any:
        scene = self
        scene.started.append((module, dict(environment)))
        said = [Phase(name="stepping"), None, Worked.model_construct()]

        class Child:
            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                pass

            def send(self, order: WorkOrder) -> None:
                scene.orders.append(order)
                scene.folders.append(Path(order.evidence_folder).is_dir())

            def receive(self, timeout_s: float) -> Any:
                if scene.error is not None:
                    raise scene.error
                return said.pop(0)

        return Child()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene()
    monkeypatch.setattr(following, "Child", made.child)
    monkeypatch.setattr(following.interconnect, "measure", made.measure)
    monkeypatch.setattr(following.time, "sleep", made.slept.append)
    return made


def test_every_repeat_has_a_worker_of_its_own_in_the_ranks_place(scene: Scene) -> None:
    following.follow(OFFERED, PLACE, 7.0, Silent())
    assert scene.started == [("llmb.processes.worker", {"ACME": "1"})] * 3
    assert [order.repeat for order in scene.orders] == [0, 1, 2]
    assert {order.place for order in scene.orders} == {PLACE}
    assert {order.rank_timeout_s for order in scene.orders} == {7.0}
    assert all(order.config == for_children(CONFIG) for order in scene.orders)
    assert all(order.collect_evidence and not order.profile_folder for order in scene.orders)


def test_evidence_of_another_rank_is_left_nowhere(scene: Scene) -> None:
    following.follow(OFFERED, PLACE, 7.0, Silent())
    assert scene.folders == [True] * 3, "while it works"
    assert not any(Path(order.evidence_folder).exists() for order in scene.orders)


def test_only_the_first_repeat_makes_traced_steps(scene: Scene) -> None:
    following.follow(OFFERED, PLACE, 7.0, Silent(), profile=True)
    assert [bool(order.profile_folder) for order in scene.orders] == [True, False, False]


def test_what_a_worker_says_of_its_way_is_shown(scene: Scene) -> None:
    display = Watched()
    following.follow(OFFERED, PLACE, 7.0, display)
    assert [message.name for message in display.messages] == ["stepping"] * 3


@pytest.mark.parametrize("kind", [RunFailedError, NotEnoughMemoryError])
def test_an_error_says_whose_it_is_and_leaves_rank_0_time_to_say_so_too(
    scene: Scene, kind: type[Exception]
) -> None:
    scene.error = kind("the worker died")
    with pytest.raises(kind, match=r"^rank 2: the worker died$"):
        following.follow(OFFERED, PLACE, 7.0, Silent())
    assert scene.slept == [10.0]


def test_where_rank_0_is_gone_nobody_waits_for_it(scene: Scene) -> None:
    scene.error = RunFailedError(UNREACHABLE)
    with pytest.raises(RunFailedError, match="rank 0 is gone"):
        following.follow(OFFERED, PLACE, 7.0, Silent())
    assert scene.slept == []


def test_links_are_measured_once_before_all_repeats(scene: Scene) -> None:
    following.follow(OFFERED, PLACE, 7.0, Silent())
    assert scene.measured == [PLACE]
    scene.unmet, scene.started = RunFailedError("rank 3 did not come"), []
    with pytest.raises(RunFailedError, match=r"^rank 2: rank 3 did not come$"):
        following.follow(OFFERED, PLACE, 7.0, Silent())
    assert (scene.started, scene.slept) == ([], [10.0])
