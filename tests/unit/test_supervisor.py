"""The straight line of a run, with everything that starts a process replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmb import supervisor
from llmb.config import BF16, FP32, AuditMode, Mode, RankAddress, RunRequest
from llmb.endings import Interrupted
from llmb.errors import RunFailedError, UnavailableError, UsageError
from llmb.records.interconnect import Interconnect
from llmb.records.seed_commitment import SeedCommitment
from llmb.supervision.negotiation import Negotiated
from llmb.supervision.run_phases import Silent
from llmb.wire.messages import Terms
from tests.unit.builders_runtime import TINY, ceilings, host_load, offer, run_config

CONFIG = run_config(shape_overrides=TINY, repeats=2)
REQUEST = RunRequest(workload="llama-1.4b", shape_overrides=TINY, batch_size=1)
SLOW = BF16.model_copy(update={"native": False})
PLACE = RankAddress(
    rank=0, world_size=2, local_rank=0, local_world_size=2, host="localhost", port=29500
)


class Scene:
    """Everything that the line calls, and in which order it was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.asked: list[tuple[Any, ...]] = []
        self.config, self.offered, self.notes = CONFIG, offer(), ("a note",)
        self.ceilings: list[Any] = ["before", "after"]
        self.linked: Any = Interconnect(with_plugin=False, seconds=1.0)
        #: What a repeat raises, or ends with once its window is complete; and which repeat.
        self.error: BaseException | None = None
        self.ended: BaseException | None = None
        self.fails_in = 0
        self.raw: Any = None
        self.options: dict[str, Any] = {}
        self.loads = [host_load(load_1min=1.0), host_load(load_1min=2.0)]

    def negotiate(self, *asked: Any, estimate: bool = False) -> Negotiated:
        self.asked.append((*asked, estimate))
        terms = Terms(environment={}, warmup_steps=1, facts={}, peak=None)
        return Negotiated(self.offered, self.config, terms, self.notes, "said by probes")

    def run_phases(self, *_: Any, **options: Any) -> Any:
        scene = self
        self.options = options

        class Line:
            run_id = "7" * 32

            def ceiling(self, config: Any) -> Any:
                scene.calls.append(("ceiling", config.batch_size))
                found = scene.ceilings.pop(0)
                whole = ceilings(1.0, 2.0)
                return getattr(whole, found) if found else None

            def interconnect(self, config: Any) -> Any:
                scene.calls.append(("interconnect", config.batch_size))
                return scene.linked

            def repeat(self, config: Any, number: int) -> Any:
                scene.calls.append(("repeat", number, config.batch_size))
                if scene.error is not None and number == scene.fails_in:
                    raise scene.error
                ended = scene.ended if number == scene.fails_in else None
                examined = SimpleNamespace(weights={})
                return SimpleNamespace(number=number, ended=ended, files={}, examined=examined)

            def search_batch_size(self, config: Any) -> Any:
                scene.calls.append("search")
                return SimpleNamespace(best=4)

            def say(self, phase: str) -> None:
                pass

        return Line()

    def assemble(self, raw: Any, directory: Any) -> Any:
        self.raw = raw
        return SimpleNamespace(result=SimpleNamespace(tokens_per_second=12.345))


class Noting(Silent):
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene()
    monkeypatch.setattr(supervisor, "negotiate", made.negotiate)
    monkeypatch.setattr(supervisor, "RunPhases", made.run_phases)
    monkeypatch.setattr(supervisor, "assemble", made.assemble)
    monkeypatch.setattr(supervisor, "pretty_bytes", lambda record: b"{}")
    monkeypatch.setattr(supervisor.host, "load", lambda: made.loads.pop(0))
    return made


def log_of(folder: Path) -> str:
    (log,) = folder.glob("*/log.txt")
    return log.read_text()


def test_repeats_lie_between_two_ceilings_and_two_readings_of_the_host(
    scene: Scene, tmp_path: Path
) -> None:
    done = supervisor.run(REQUEST, tmp_path, Silent())
    before = [("ceiling", 1), ("interconnect", 1)]
    assert scene.calls == [*before, ("repeat", 0, 1), ("repeat", 1, 1), ("ceiling", 1)]
    assert [repeat.number for repeat in scene.raw.repeats] == [0, 1]
    assert (scene.raw.interconnect, scene.raw.ceilings) == (scene.linked, ceilings(1.0, 2.0))
    assert (scene.raw.load_before.load_1min, scene.raw.load_after.load_1min) == (1.0, 2.0)
    assert scene.raw.real_s >= 0
    assert (done.path / "record.json").read_bytes() == b"{}"
    assert done.path.name.endswith("Z-llama-1.4b-BF16-cpu")
    assert "finished: 12.35 tokens/s" in log_of(tmp_path)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_run_with_one_ceiling_alone_has_none(scene: Scene, tmp_path: Path, missing: int) -> None:
    scene.ceilings[missing] = None
    supervisor.run(REQUEST, tmp_path, Silent())
    assert scene.raw.ceilings is None


def test_the_seed_of_a_commitment_is_the_runs_and_is_kept_with_it(
    scene: Scene, tmp_path: Path
) -> None:
    said = SeedCommitment(commitment="0" * 64, seed=99, salt="ab" * 16, committed_by="somebody")
    supervisor.run(REQUEST, tmp_path, Silent(), said)
    assert scene.asked[0][0].seed == 99
    assert scene.raw.seed_commitment is said


def test_a_run_is_estimated_and_asked_for_in_the_workloads_own_mode(
    scene: Scene, tmp_path: Path
) -> None:
    supervisor.run(REQUEST, tmp_path, Silent())
    ((request, workload, place, estimate),) = scene.asked
    assert (request.mode, workload.name, place, estimate) == (
        Mode.TRAIN,
        "llama-1.4b",
        None,
        True,
    )


def test_a_batch_size_is_searched_before_anything_is_measured_and_then_kept(
    scene: Scene, tmp_path: Path
) -> None:
    request = REQUEST.model_copy(update={"batch_size": "auto"})
    supervisor.run(request, tmp_path, Silent())
    assert scene.calls[0] == "search"
    assert scene.calls[1:4] == [("ceiling", 4), ("interconnect", 4), ("repeat", 0, 4)]
    assert scene.raw.config.batch_size == 4
    assert scene.raw.search.best == 4


def test_ranks_search_for_nothing(scene: Scene, tmp_path: Path) -> None:
    request = REQUEST.model_copy(update={"batch_size": "auto", "rank_timeout_s": 7.0})
    supervisor.run(request, tmp_path, Silent(), place=PLACE)
    assert "search" not in scene.calls
    expected = {"profile": False, "place": PLACE, "rank_timeout_s": 7.0, "authority": None}
    assert {name: scene.options[name] for name in expected} == expected
    assert scene.asked[0][2] == PLACE


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RunFailedError("the worker died"), "the run did not finish: the worker died"),
        (KeyboardInterrupt(), "the run did not finish: interrupted while the device's ceiling"),
        (ZeroDivisionError("a defect"), "the run did not finish: ZeroDivisionError: a defect"),
    ],
    ids=repr,
)
def test_a_run_that_fails_says_so_in_its_log_and_has_no_record(
    scene: Scene, tmp_path: Path, error: BaseException, words: str
) -> None:
    scene.error = error
    with pytest.raises(type(error)):
        supervisor.run(REQUEST, tmp_path, Silent())
    assert words in log_of(tmp_path)
    assert list(tmp_path.glob("*/record.json")) == []


def test_an_error_keeps_its_kind_and_names_the_log(scene: Scene, tmp_path: Path) -> None:
    scene.error = UnavailableError("no device")
    with pytest.raises(UnavailableError, match=r"no device \(see .*/log\.txt\)$"):
        supervisor.run(REQUEST, tmp_path, Silent())


def test_repeats_before_one_that_fails_are_recorded(scene: Scene, tmp_path: Path) -> None:
    scene.error, scene.fails_in = RunFailedError("the worker died"), 1
    with pytest.raises(RunFailedError, match=r"the worker died"):
        supervisor.run(REQUEST, tmp_path, Silent())
    assert [repeat.number for repeat in scene.raw.repeats] == [0]
    assert scene.raw.config.repeats == 1
    found = scene.raw.interruption
    assert (found.by, found.repeat, found.repeats) == ("the worker died", 1, 2)
    assert scene.raw.ceilings is None, "the second was not measured"


def test_a_repeat_that_ends_after_its_window_is_the_last_and_is_recorded(
    scene: Scene, tmp_path: Path
) -> None:
    scene.ended = Interrupted("SIGTERM")
    with pytest.raises(Interrupted, match="interrupted by SIGTERM"):
        supervisor.run(REQUEST, tmp_path, Silent())
    assert [call[0] for call in scene.calls] == ["ceiling", "interconnect", "repeat"]
    assert [repeat.number for repeat in scene.raw.repeats] == [0]
    assert scene.raw.interruption.by == "SIGTERM"
    assert list(tmp_path.glob("*/record.json")), "what was measured is kept"


def test_an_interrupted_rank_may_have_been_ended_by_its_launcher(
    scene: Scene, tmp_path: Path
) -> None:
    scene.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        supervisor.run(REQUEST, tmp_path, Silent(), place=PLACE)
    assert "maybe by its launcher because another rank had failed" in log_of(tmp_path)


@pytest.mark.parametrize(("precision", "notes"), [(BF16, 1), (SLOW, 2)])
def test_notes_and_an_emulated_format_are_told_before_a_long_wait(
    scene: Scene, tmp_path: Path, precision: Any, notes: int
) -> None:
    scene.config = CONFIG.model_copy(update={"precision": precision})
    display = Noting()
    supervisor.run(REQUEST, tmp_path, display)
    assert len(display.notes) == notes
    assert display.notes[0] == "a note"
    assert all(note in log_of(tmp_path) for note in (*display.notes, "said by probes"))
    assert ("expect it to be very slow" in display.notes[-1]) is (notes == 2)


def test_a_folder_that_cannot_be_written_is_found_before_a_plugin_is_asked(
    scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        supervisor.run(REQUEST, tmp_path / "file", Silent())
    assert scene.asked == []


def test_ranks_are_foreseen_as_the_last_of_them(scene: Scene) -> None:
    supervisor.foresee(REQUEST, 4)
    ((request, _, place, _),) = scene.asked
    assert request.mode is Mode.TRAIN
    assert (place.rank, place.world_size, place.local_rank) == (3, 4, 3)


def test_another_rank_follows_in_its_own_place(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(
        supervisor.following, "follow", lambda *a, **options: told.append((*a, options))
    )
    request = REQUEST.model_copy(update={"rank_timeout_s": 7.0, "profile": True})
    supervisor.follow(request, PLACE, Silent())
    ((_, place, timeout_s, _, options),) = told
    assert (place, timeout_s, options) == (PLACE, 7.0, {"profile": True})
    assert scene.asked[0][2] == PLACE


def test_what_a_device_attains_is_measured_in_the_format_it_computes_in(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(supervisor.run_phases, "calibrate", lambda *a: told.append(a))
    scene.config = CONFIG.model_copy(
        update={"precision": SLOW.model_copy(update={"products": "FP32"})}
    )
    supervisor.calibrate(REQUEST, 3.0)
    ((_, config, seconds, *_),) = told
    assert (config.precision, seconds) == (FP32, 3.0)


def test_a_format_that_is_only_emulated_has_no_ceiling(scene: Scene) -> None:
    scene.config = CONFIG.model_copy(update={"precision": SLOW, "audit": AuditMode.OFF})
    with pytest.raises(UnavailableError, match="--precision BF16: cpu only emulates it"):
        supervisor.calibrate(REQUEST, 3.0)
