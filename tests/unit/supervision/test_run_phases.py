"""What each station gives its child, and what is left behind: no whole weights, ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from llmb import workloads
from llmb.config import BF16, FP32, AuditMode, RankAddress, RunConfig
from llmb.endings import Interrupted, RunPhase
from llmb.errors import NotEnoughMemoryError, RunFailedError
from llmb.records.draws import Draws, nonce_of
from llmb.records.run_directory import RunDirectory
from llmb.supervision import run_phases
from llmb.supervision.auditing import Examined, Folders
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.run_phases import RunPhases, Silent
from llmb.supervision.stream import Streamed, Window
from llmb.wire.measurements import Calibration, CalibrationOrder
from llmb.wire.messages import Message, Terms, WorkOrder
from tests.unit.builders_runtime import TINY, ceilings, offer, run_config, timing

CONFIG = run_config(shape_overrides=TINY, timed_steps=20)
WORKLOAD = workloads.find("llama-1.4b", TINY)
STREAMED = Streamed(timing(), None, {"a": "1"}, {"w": "2"})


class FakeChild:
    """A child that notes how it was started and what it was sent."""

    def __init__(self, module: str, environment: dict[str, str], log: Any) -> None:
        self.module, self.environment = module, dict(environment)
        self.sent: list[Message] = []
        log.write(b"a child was here\n")

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def expect(self, kind: type, timeout_s: float) -> Message:
        return Calibration(ceiling=ceilings(1e12, 1e12).before)


class Line:
    """RunPhases whose processes are fakes; what they were asked is noted."""

    def __init__(self, folder: Path, config: RunConfig = CONFIG, **offered: Any) -> None:
        terms = Terms(environment={"ACME": "1"}, warmup_steps=1, facts={}, peak=None)
        negotiated = Negotiated(offer(**offered), config, terms, (), "")
        self.directory = RunDirectory(folder, datetime(2026, 1, 1, tzinfo=timezone.utc), "x")
        self.run_phases = RunPhases(WORKLOAD, negotiated, self.directory, Silent())
        self.config = config
        self.children: list[FakeChild] = []
        self.windows: list[Window] = []
        self.drawn: list[Draws] = []
        self.numbers: list[int] = []
        self.examined: list[tuple[Folders, Streamed]] = []
        self.failures: tuple[str, ...] = ()
        self.error: Exception | None = None
        #: Whether the folder for whole weights was there while a worker ran and was examined.
        self.scratch_seen: list[bool] = []

    def child(self, *given: Any) -> FakeChild:
        self.children.append(FakeChild(*given))
        return self.children[-1]

    def drive(
        self,
        child: FakeChild,
        config: RunConfig,
        window: Window,
        number: int,
        drawn: Draws,
        *_: object,
    ) -> Streamed:
        self.windows.append(window)
        self.numbers.append(number)
        self.drawn.append(drawn)
        self.look(child.sent[0])
        if self.error is not None:
            raise self.error
        return STREAMED

    def look(self, order: Message) -> None:
        assert isinstance(order, WorkOrder)
        self.scratch_seen.append(bool(order.scratch_folder) and Path(order.scratch_folder).is_dir())

    def examiner(self, negotiated: Negotiated, config: RunConfig, folders: Folders, *_: Any) -> Any:
        line = self

        class Examiner:
            def examine(self, streamed: Streamed) -> Examined:
                assert folders.scratch is not None
                line.scratch_seen.append(folders.scratch.is_dir())
                line.examined.append((folders, streamed))
                return Examined({"b": "2"}, line.failures)

        return Examiner()

    def left(self) -> set[str]:
        return {path.name for path in self.directory.path.iterdir()} - {".reserve"}

    @property
    def order(self) -> WorkOrder:
        (message,) = self.children[-1].sent
        assert isinstance(message, WorkOrder)
        return message

    @property
    def log(self) -> str:
        return (self.directory.path / "log.txt").read_text()


Make = Callable[..., Line]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    made: list[Line] = []

    def call(config: RunConfig = CONFIG, **offered: Any) -> Line:
        line = Line(tmp_path, config, **offered)
        made.append(line)
        monkeypatch.setattr(run_phases, "Child", line.child)
        monkeypatch.setattr(run_phases, "drive", line.drive)
        monkeypatch.setattr(run_phases, "Examiner", line.examiner)
        return line

    yield call
    for each in made:
        each.directory.abandon("the test is over")


@pytest.fixture
def line(make: Make) -> Line:
    return make()


# -- a repeat -------------------------------------------------------------------------------


def test_a_repeat_is_a_worker_and_what_the_audit_saw_of_it(line: Line) -> None:
    found = line.run_phases.repeat(CONFIG, 0)
    assert found.streamed is STREAMED
    assert found.files == {"a": "1", "b": "2"}
    (child,) = line.children
    assert (child.module, child.environment) == ("llmb.processes.worker", {"ACME": "1"})
    assert [streamed for _, streamed in line.examined] == [STREAMED]


def test_a_worker_is_told_the_models_seed_its_folders_and_nothing_of_the_window(
    line: Line,
) -> None:
    line.run_phases.repeat(CONFIG, 0)
    order = line.order
    assert order.config == for_children(CONFIG)
    assert order.collect_evidence
    assert order.evidence_folder == str(line.directory.path / "evidence" / "repeat-0")
    secret = {str(line.windows[0].start), line.drawn[0].nonce}
    assert not secret & set(order.model_dump_json().split('"'))


def test_a_nonce_that_was_asked_for_is_the_runs_own_and_no_child_is_told(line: Line) -> None:
    line.run_phases.repeat(CONFIG.model_copy(update={"nonce": "ab" * 16}), 0)
    assert line.drawn[0].nonce == "ab" * 16
    assert line.order.config.nonce is None


def test_without_an_audit_steps_show_no_gradients(line: Line) -> None:
    line.run_phases.repeat(CONFIG.model_copy(update={"audit": AuditMode.OFF}), 0)
    assert not line.drawn[0].ledger


def test_whole_weights_have_a_folder_while_they_are_needed_and_none_afterwards(
    line: Line,
) -> None:
    line.run_phases.repeat(CONFIG, 0)
    assert line.scratch_seen == [True, True], "while the worker runs, and while it is examined"
    assert line.left() == {"evidence", "plugin", "log.txt"}


@pytest.mark.parametrize("error", [RunFailedError("x"), KeyboardInterrupt()], ids=repr)
def test_whole_weights_are_gone_too_when_the_worker_fails_or_the_user_interrupts(
    line: Line, error: BaseException
) -> None:
    line.error = error
    with pytest.raises(type(error)):
        line.run_phases.repeat(CONFIG, 0)
    assert line.scratch_seen == [True]
    assert line.left() == {"evidence", "plugin", "log.txt"}


def test_a_signal_while_the_worker_of_a_complete_window_is_ended_keeps_the_timing(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: FakeChild) -> None:
        line.run_phases.progress.enter(RunPhase.EVIDENCE)
        raise Interrupted("SIGUSR1")

    monkeypatch.setattr(FakeChild, "end", end)
    found = line.run_phases.repeat(CONFIG, 0)
    assert found.streamed.timing == STREAMED.timing
    assert isinstance(found.examined.ended, Interrupted)
    assert line.examined == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("the worker was killed", "rank 0: the worker was killed"),
        (
            "rank 3 ended while the others were at work",
            "rank 3 ended while the others were at work",
        ),
    ],
)
def test_of_several_ranks_a_failed_worker_is_named_by_its_rank(
    line: Line, said: str, told: str
) -> None:
    place = RankAddress(
        rank=0, world_size=4, local_rank=0, local_world_size=4, host="h", port=29500
    )
    line.run_phases = replace(line.run_phases, place=place)
    line.error = RunFailedError(said)
    with pytest.raises(RunFailedError) as raised:
        line.run_phases.repeat(CONFIG, 0)
    assert str(raised.value) == told


def test_every_repeat_has_a_window_and_a_nonce_of_its_own_and_its_number(line: Line) -> None:
    config = CONFIG.model_copy(update={"repeats": 20})
    for number in range(20):
        line.run_phases.repeat(config, number)
    assert line.numbers == list(range(20))
    first = line.run_phases.nonce
    assert [drawn.nonce for drawn in line.drawn] == [nonce_of(first, n) for n in range(20)]
    assert len(set(line.windows)) > 10
    assert all(len(window.audits) == 2 for window in line.windows)
    assert {"repeat-0", "repeat-19"} <= {
        p.name for p in (line.directory.path / "evidence").iterdir()
    }


def test_the_same_run_again_has_another_window_though_its_seed_is_the_same(make: Make) -> None:
    windows = set()
    for _ in range(12):
        line = make()
        line.run_phases.repeat(CONFIG, 0)
        windows |= set(line.windows)
    assert len(windows) > 6


def test_what_went_wrong_in_the_audit_is_logged(line: Line) -> None:
    line.failures = ("the reference failed: it was altered",)
    found = line.run_phases.repeat(CONFIG, 0)
    assert found.examined.failures == line.failures
    assert "the reference failed: it was altered" in line.log
    assert "a child was here" in line.log


def test_with_the_audit_switched_off_nothing_is_looked_at_and_it_is_said_so(make: Make) -> None:
    line = make(CONFIG.model_copy(update={"audit": AuditMode.OFF}))
    found = line.run_phases.repeat(line.config, 0)
    assert found.files == {"a": "1"}
    assert found.examined.failures == ("the audit was switched off: --audit off",)
    assert line.examined == []
    assert line.order.scratch_folder == ""
    assert line.order.collect_evidence
    (window,) = line.windows
    assert window.audits == ()
    assert window.end > window.stop


@pytest.mark.parametrize("mode", [AuditMode.FULL, AuditMode.QUICK])
def test_a_quick_audit_looks_at_as_many_steps_as_a_full_one(make: Make, mode: AuditMode) -> None:
    line = make(CONFIG.model_copy(update={"audit": mode}))
    line.run_phases.repeat(line.config, 0)
    assert len(line.windows[0].audits) == 2
    assert len(line.examined) == 1


# -- the search -----------------------------------------------------------------------------


@pytest.fixture
def searched(make: Make) -> Line:
    """Search the batch size of a device on which several sizes fit."""
    line = make(available_memory_bytes=4 * 10**9)
    line.run_phases.search_batch_size(CONFIG)
    assert line.windows
    return line


def test_a_trial_of_the_search_leaves_no_evidence(searched: Line) -> None:
    for child in searched.children:
        (order,) = child.sent
        assert isinstance(order, WorkOrder)
        assert not order.collect_evidence
        assert (order.evidence_folder, order.scratch_folder) == ("", "")
    assert searched.left() == {"evidence", "plugin", "log.txt"}
    assert list((searched.directory.path / "evidence").iterdir()) == []


def test_a_trial_of_the_search_audits_nothing(searched: Line) -> None:
    assert len(searched.windows) == len(searched.children)
    for window in searched.windows:
        assert window.audits == ()
        assert window.end == window.stop


def test_a_trial_of_the_search_is_given_none_of_the_runs_own_tokens(searched: Line) -> None:
    assert all(number < 0 for number in searched.numbers)


def test_a_trial_that_runs_out_of_memory_is_an_answer_and_no_failure(line: Line) -> None:
    line.error = NotEnoughMemoryError("out of memory")
    trial = line.run_phases._trial(CONFIG)
    assert (trial.status, trial.message) == ("out_of_memory", "out of memory")


def test_a_trial_that_cannot_fit_is_not_even_started(make: Make) -> None:
    line = make(available_memory_bytes=1)
    assert line.run_phases._trial(CONFIG).status == "predicted_out_of_memory"
    assert line.children == []


# -- ceilings -------------------------------------------------------------------------------


def calibrated(line: Line) -> RunConfig:
    (message,) = line.children[-1].sent
    assert isinstance(message, CalibrationOrder)
    return message.config


def test_a_ceiling_comes_from_a_process_with_the_plugins_variables(line: Line) -> None:
    assert line.run_phases.ceiling(CONFIG) is not None
    (child,) = line.children
    assert (child.module, child.environment) == ("llmb.processes.ceilings", {"ACME": "1"})
    assert calibrated(line) == for_children(CONFIG)


def test_an_emulated_format_is_held_against_float32_in_an_official_run_and_not_in_a_debug_run(
    make: Make,
) -> None:
    slow = BF16.model_copy(update={"native": False})
    line = make()
    assert line.run_phases.ceiling(CONFIG.model_copy(update={"precision": slow})) is None
    assert line.children == []
    line.run_phases.ceiling(run_config(precision=slow))
    assert calibrated(line).precision == FP32


def test_a_ceiling_that_cannot_be_measured_is_logged_and_no_failure(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise RunFailedError("the calibrator died")

    monkeypatch.setattr(run_phases, "calibrate", failing)
    assert line.run_phases.ceiling(CONFIG) is None
    assert "the ceiling was not measured: the calibrator died" in line.log


# -- what is told to whom ---------------------------------------------------------------------


def stations_of(line: Line, **options: Any) -> RunPhases:
    offered = line.run_phases.negotiated
    return RunPhases(WORKLOAD, offered, line.directory, Silent(), **options)


def test_only_the_first_worker_leaves_a_trace_and_only_where_one_is_asked_for(line: Line) -> None:
    traced = stations_of(line, profile=True)
    traced.repeat(CONFIG, 0)
    assert line.order.profile_folder == str(line.directory.path.resolve() / "profile")
    traced.repeat(CONFIG, 1)
    assert line.order.profile_folder == ""
    line.run_phases.repeat(CONFIG, 2)
    assert line.order.profile_folder == ""


def test_a_worker_is_told_its_place_its_number_and_how_long_to_wait_for_others(line: Line) -> None:
    place = RankAddress(
        rank=0, world_size=2, local_rank=0, local_world_size=2, host="localhost", port=29500
    )
    stations_of(line, place=place, rank_timeout_s=7.0).repeat(CONFIG, 3)
    assert (line.order.place, line.order.rank_timeout_s, line.order.repeat) == (place, 7.0, 3)
    assert line.order.scratch_folder == str(line.directory.path.resolve() / ".scratch-3")


@pytest.mark.parametrize(
    ("repeats", "words"), [(1, "starting worker\n"), (3, "starting worker 2 of 3\n")]
)
def test_of_several_workers_it_is_said_which_starts(line: Line, repeats: int, words: str) -> None:
    line.run_phases.repeat(CONFIG.model_copy(update={"repeats": repeats}), 1)
    assert words in line.log


def test_a_trial_that_ran_has_its_own_rate_and_peak(line: Line) -> None:
    found = line.run_phases._trial(CONFIG.model_copy(update={"batch_size": 4}))
    seconds = (STREAMED.timing.stop_ns - STREAMED.timing.start_ns) / 1e9
    assert (found.batch_size, found.status, found.message) == (4, "measured", None)
    assert found.tokens_per_second == pytest.approx(4 * 8 * STREAMED.timing.timed_steps / seconds)
    assert found.peak_memory_bytes == STREAMED.timing.peak_memory_bytes


def test_a_trial_times_three_steps(searched: Line) -> None:
    assert {window.stop - window.start for window in searched.windows} == {3}


@pytest.mark.parametrize(("config", "seconds"), [(CONFIG, 0.25), (run_config(), 4.0)])
def test_an_official_ceiling_takes_longer_than_a_debug_runs(
    line: Line, config: RunConfig, seconds: float
) -> None:
    line.run_phases.ceiling(config)
    (message,) = line.children[-1].sent
    assert isinstance(message, CalibrationOrder)
    assert message.seconds == seconds
