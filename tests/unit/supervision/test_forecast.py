"""The foreseen seconds of a run: parts, corrections, and the search for the batch size."""

from __future__ import annotations

import pytest

from llmb import clock, workloads
from llmb.config import AuditMode, RunRequest
from llmb.endings import RunPhase, RunProgress
from llmb.supervision import forecast
from llmb.supervision.forecast import SEARCH, Forecast, ForecastPart
from llmb.wire.messages import Tick

PARTS = (
    ForecastPart(RunPhase.ASKING, 10.0),
    ForecastPart(SEARCH, 20.0),
    ForecastPart(RunPhase.CEILINGS, 5.0),
    ForecastPart(RunPhase.WINDOW, 0.0, steps=100),
    ForecastPart(RunPhase.CEILINGS, 5.0),
)


class Clock:
    """A clock that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.s = 0.0
        monkeypatch.setattr(clock, "now_ns", lambda: int(self.s * 1e9))


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def run(time: Clock) -> Forecast:
    return Forecast(PARTS, step_s=1.0, progress=RunProgress(), _began_ns=0, _since_ns=0)


def enter(run: Forecast, phase: RunPhase) -> float:
    assert run.progress is not None
    run.progress.enter(phase)
    return run.left_s()


def test_the_time_left_is_the_sum_of_the_parts_and_passes(run: Forecast, time: Clock) -> None:
    assert run.left_s() == 140.0
    time.s = 4.0
    assert run.left_s() == 136.0


def test_an_overdue_part_makes_the_later_parts_longer(run: Forecast, time: Clock) -> None:
    time.s = 30.0
    assert run.left_s() > 140.0


def test_a_slow_part_makes_later_parts_longer_and_a_fast_part_shorter(
    run: Forecast, time: Clock
) -> None:
    time.s = 20.0
    slow = enter(run, RunPhase.CEILINGS)
    assert 105.0 + 5.0 < slow < 100.0 + 2 * 10.0
    time.s = 21.0
    assert 100.0 < enter(run, RunPhase.WINDOW) < 110.0


def test_the_second_ceiling_takes_as_long_as_the_first(run: Forecast, time: Clock) -> None:
    enter(run, RunPhase.CEILINGS)
    time.s = 3.0
    assert enter(run, RunPhase.WINDOW) == pytest.approx(100.0 + 3.0)


def test_measured_steps_replace_the_guess_and_the_first_step_does_not_count(
    run: Forecast, time: Clock
) -> None:
    enter(run, RunPhase.CEILINGS)
    enter(run, RunPhase.WINDOW)
    run.stream(90)
    for index, seconds in enumerate((60.0, 61.0, 61.5, 62.0)):
        run.tick(Tick(index=index, ns=int(seconds * 1e9)))
    assert run.step_s == pytest.approx(0.5)
    assert run.left_s() == pytest.approx(86 * 0.5)


def test_phases_of_a_trial_do_not_end_the_search(run: Forecast, time: Clock) -> None:
    time.s = 10.0
    enter(run, RunPhase.CEILINGS)  # before the run directory is made
    with run.searching():
        assert enter(run, RunPhase.WINDOW) > 120.0
    assert enter(run, RunPhase.CEILINGS) < 120.0


@pytest.mark.parametrize(
    ("update", "longer"),
    [
        ({"repeats": 3}, True),
        ({"batch_size": "auto"}, True),
        ({"timed_steps": 500}, True),
        ({"audit": AuditMode.OFF}, False),
        ({"workload": "llama-45m"}, False),
        ({"within_s": 600.0}, False),
    ],
    ids=str,
)
def test_a_run_of_more_work_is_foreseen_to_take_longer(
    update: dict[str, object], longer: bool
) -> None:
    def of(request: RunRequest) -> float:
        workload = workloads.of(request)
        return forecast.of_request(request, workload, RunProgress()).left_s()

    usual, other = of(RunRequest()), of(RunRequest().model_copy(update=update))
    assert (other > usual) is longer
    assert other > 0


def test_a_time_limit_is_foreseen_to_be_kept() -> None:
    request = RunRequest(within_s=600.0)
    found = forecast.of_request(request, workloads.of(request), RunProgress())
    assert 300.0 < found.left_s() <= 612.0  # the time of a replay does not follow that of a step
