"""The stream of steps: where the window lies, what a worker can tell of it, what is stamped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from llmb.audit.time import FENCE_EVERY
from llmb.config import RunConfig
from llmb.errors import RunFailedError
from llmb.measure import clock
from llmb.measure.summary import EnergyMeter
from llmb.supervision.stream import (
    LOOKAHEAD,
    Patience,
    Streamed,
    Window,
    derive,
    drive,
    plan_trial,
    plan_window,
)
from llmb.wire.messages import (
    EvidenceFile,
    Message,
    Phase,
    Ready,
    StepOrder,
    Stop,
    Tick,
    Worked,
    WorkOrder,
)
from tests.unit.builders_runtime import fence, run_config

SEEDS = range(200)
CONFIG = run_config(warmup_steps=3)


# -- the plan -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_start_is_the_first_or_the_second_fence_and_stop_exactly_the_timed_steps_later(
    seed: int,
) -> None:
    window = plan_window(run_config(seed=seed, warmup_steps=3, timed_steps=60), 0)
    assert window.first_fence == 3
    assert window.start in (3, 3 + FENCE_EVERY)
    assert window.stop == window.start + 60
    assert 1 <= window.end - window.stop <= 4


def test_over_seeds_and_over_repeats_both_starts_and_every_tail_occur() -> None:
    for windows in (
        [plan_window(run_config(seed=seed), 0) for seed in SEEDS],
        [plan_window(run_config(seed=1), repeat) for repeat in SEEDS],
    ):
        first = sum(window.start == window.first_fence for window in windows)
        assert 70 < first < 130
        assert {window.end - window.stop for window in windows} == {1, 2, 3, 4}


def test_the_same_seed_and_repeat_draw_the_same_window() -> None:
    assert plan_window(CONFIG, 1) == plan_window(CONFIG, 1)


def test_fences_come_every_ten_steps_from_the_end_of_warm_up_for_ever() -> None:
    window = plan_window(CONFIG, 0)
    fences = [steps for steps in range(200) if window.is_fence(steps)]
    assert fences == list(range(3, 200, FENCE_EVERY))


@pytest.mark.parametrize("seed", range(20))
def test_a_window_of_any_length_ends_in_a_fence(seed: int) -> None:
    window = plan_window(run_config(seed=seed, timed_steps=7), 0)
    assert window.is_fence(window.start)
    assert window.is_fence(window.stop)


def test_nothing_in_the_orders_tells_one_start_from_the_other() -> None:
    # Two seeds with different windows: what is ordered has its fences at the same steps.
    by_start = {}
    for seed in SEEDS:
        window = plan_window(run_config(seed=seed), 0)
        by_start[window.start] = [window.is_fence(steps) for steps in range(100)]
    first, second = by_start.values()
    assert first == second


@pytest.mark.parametrize("timed_steps", [51, 55, 99])
def test_nothing_tells_stop_whatever_number_of_steps_is_official(timed_steps: int) -> None:
    by_start = {}
    for seed in SEEDS:
        window = plan_window(run_config(seed=seed, timed_steps=timed_steps), 0)
        by_start[window.start] = [window.is_fence(steps) for steps in range(window.stop + 1)]
    first, second = by_start.values()
    assert all(a == b for a, b in zip(first, second, strict=False))


def test_a_trial_measures_from_the_first_fence_and_does_no_step_more() -> None:
    window = plan_trial(run_config(warmup_steps=2, timed_steps=3))
    assert window == Window(first_fence=2, start=2, stop=5, end=5)


def test_derived_seeds_are_63_bits_distinct_and_a_function_of_seed_and_label() -> None:
    labels = [("model",), ("window", 0), ("step", 0, 1), ("step", 1, 0), ("step", 1, 1)]
    drawn = {derive(seed, *label) for seed in range(50) for label in labels}
    assert len(drawn) == 50 * len(labels)
    assert all(0 <= number < 2**63 for number in drawn)
    assert max(drawn) > 2**61
    assert derive(7, "model") == derive(7, "model")


@pytest.mark.parametrize("timed_steps", [51, 55, 99])
@pytest.mark.parametrize("seed", range(6))
def test_an_irregular_stop_has_a_double_where_the_other_start_would_put_it(
    timed_steps: int, seed: int
) -> None:
    window = plan_window(run_config(seed=seed, warmup_steps=3, timed_steps=timed_steps), 0)
    regular = set(range(3, 150, FENCE_EVERY))
    irregular = {steps for steps in range(150) if window.is_fence(steps)} - regular
    assert irregular == {3 + timed_steps, 13 + timed_steps}
    assert window.stop in irregular


# -- the drive ------------------------------------------------------------------------------


class Worker:
    """A worker in this process, on a clock of 1 ms a step; ``tamper`` may change what it says."""

    def __init__(self, tamper: Callable[[Message], list[Message]] = lambda m: [m]) -> None:
        self.orders: deque[StepOrder] = deque()
        self.sent: list[StepOrder] = []
        self.stop: int | None = None
        self.done = 0
        self.now = 0
        self.received_ns = 0
        self.outbox: deque[Message] = deque([Phase(name="training"), Ready()])
        self.tamper = tamper
        #: What was said and heard, in order.
        self.history: list[Message] = []
        self.finished = False

    def send(self, message: Message) -> None:
        self.history.append(message)
        if isinstance(message, Stop):
            self.stop = message.steps
        else:
            assert isinstance(message, StepOrder)
            self.sent.append(message)
            self.orders.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        while not self.outbox:
            for message in self.work():
                self.outbox.extend(self.tamper(message))
        message = self.outbox.popleft()
        self.received_ns = self.now
        self.history.append(message)
        return message

    def work(self) -> list[Message]:
        assert not self.finished, "the supervisor listens to a worker that has ended"
        if self.stop is not None and self.done >= self.stop:
            self.finished = True
            return [EvidenceFile(name="a.json", sha256="0" * 64), Worked(steps=self.done)]
        order = self.orders.popleft()
        assert order.index == self.done
        self.done += 1
        self.now += 1_000_000
        said: list[Message] = [Tick(index=order.index, ns=self.now - 5)]
        if order.fence:
            said.append(fence(self.done, worker_ns=self.now - 1))
        return said


def run(worker: Worker, config: RunConfig = CONFIG, window: Window | None = None) -> Streamed:
    window = window or plan_window(config, 0)
    return drive(worker, config, window, 0, "host", lambda message: None)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_the_window_is_stamped_on_arrival_of_its_first_and_last_fence(seed: int) -> None:
    config = run_config(seed=seed, warmup_steps=3)
    window = plan_window(config, 0)
    timing = run(Worker(), config).timing
    assert (timing.warmup_steps, timing.timed_steps) == (window.start, 50)
    assert timing.start_ns == window.start * 1_000_000
    assert timing.stop_ns == window.stop * 1_000_000
    assert timing.fence_steps == tuple(range(3, window.stop + 1, FENCE_EVERY))
    assert timing.fence_ns == tuple(steps * 1_000_000 for steps in timing.fence_steps)
    assert timing.fence_worker_ns == tuple(ns - 1 for ns in timing.fence_ns)
    assert timing.step_ns == tuple(n * 1_000_000 - 5 for n in range(1, window.stop + 1))
    assert timing.loss_first == 10.0 - window.start / 100
    assert timing.loss_last == 10.0 - window.stop / 100
    assert timing.cpu_s == pytest.approx(5.0)
    assert timing.step_clock == "host"


def test_nothing_that_came_after_stop_is_part_of_the_run() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=75)
    timing = run(Worker(), window=window).timing
    assert timing.fence_steps[-1] == 53
    assert timing.fence_ns[-1] == timing.stop_ns
    assert len(timing.step_ns) == 53


def test_orders_run_ahead_of_the_steps_done_by_the_lookahead_and_no_further() -> None:
    worker = Worker()
    run(worker)
    done = ordered = 0
    for message in worker.history:
        if isinstance(message, Tick):
            done = message.index + 1
        elif isinstance(message, StepOrder):
            ordered += 1
        elif isinstance(message, Stop):
            break
        assert ordered <= done + LOOKAHEAD
        if isinstance(message, (Phase, Ready)):
            assert ordered == 0  # post-processing may still be going on
        if isinstance(message, Tick):
            assert ordered >= message.index + LOOKAHEAD
    assert [order.index for order in worker.sent] == list(range(len(worker.sent)))


def test_no_seed_is_sent_before_the_worker_says_that_post_processing_is_over() -> None:
    worker = Worker()
    worker.outbox = deque([Phase(name="post-processing"), None, Phase(name="training")])
    with pytest.raises(IndexError):  # this worker has no order to go on with
        run(worker)
    assert worker.sent == []


def test_the_worker_never_has_fewer_than_four_steps_before_it() -> None:
    worker = Worker()
    lengths = []
    original = worker.work

    def work() -> list[Message]:
        lengths.append(len(worker.orders))
        return original()

    worker.work = work
    run(worker)
    assert min(lengths) >= 4


@pytest.mark.parametrize("seed", range(10))
def test_the_end_is_told_only_after_the_last_fence_of_the_window_has_come(seed: int) -> None:
    config = run_config(seed=seed)
    window = plan_window(config, 0)
    worker = Worker()
    run(worker, config)
    (stop,) = (message for message in worker.history if isinstance(message, Stop))
    assert stop.steps == window.end
    before = worker.history[: worker.history.index(stop)]
    assert before[-1].kind == "fence"
    assert before[-1].steps == window.stop


def test_what_was_ordered_before_the_end_is_told_goes_on_past_every_possible_end() -> None:
    worker = Worker()
    window = plan_window(CONFIG, 0)
    run(worker)
    stop = next(i for i, message in enumerate(worker.history) if isinstance(message, Stop))
    ordered = sum(isinstance(message, StepOrder) for message in worker.history[:stop])
    assert ordered >= window.stop + 4


def test_every_step_has_a_seed_of_its_own_that_no_other_repeat_or_run_uses() -> None:
    seeds: set[int] = set()
    count = 0
    for seed, repeat in ((1, 0), (1, 1), (2, 0)):
        worker, config = Worker(), run_config(seed=seed)
        drive(worker, config, plan_window(config, repeat), repeat, "host", lambda message: None)
        seeds |= {order.seed for order in worker.sent}
        count += len(worker.sent)
    assert len(seeds) == count


def test_the_display_is_shown_phases_steps_fences_and_that_time_passes() -> None:
    shown: list[Message | None] = []
    worker = Worker()
    worker.outbox.appendleft(None)
    drive(worker, CONFIG, plan_window(CONFIG, 0), 0, "host", shown.append)
    kinds = [message and message.kind for message in shown]
    assert kinds[:3] == [None, "phase", "tick"]
    assert set(kinds) == {None, "phase", "tick", "fence"}


def test_evidence_is_remembered_by_name_and_digest() -> None:
    assert run(Worker()).evidence == {"a.json": "0" * 64}


def replacing(steps: int, **changes: object) -> Callable[[Message], list[Message]]:
    def tamper(message: Message) -> list[Message]:
        if message.kind == "fence" and message.steps == steps:
            return [message.model_copy(update=changes)]
        return [message]

    return tamper


def test_starved_steps_and_cpu_time_are_those_within_the_window() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=64)

    def tamper(message: Message) -> list[Message]:
        if message.kind != "fence":
            return [message]
        starved = {13: 2, 63: 7}.get(message.steps, 2)
        return [message.model_copy(update={"starved_steps": starved, "cpu_s": starved * 1.5})]

    timing = run(Worker(tamper), window=window).timing
    assert timing.starved_steps == 5
    assert timing.cpu_s == 7.5


def test_energy_is_read_at_start_and_stop_with_its_source() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)

    def tamper(message: Message) -> list[Message]:
        if message.kind != "fence":
            return [message]
        energy = {"energy_j": message.steps * 2.0}
        energy |= {"energy_source": "counter", "energy_scope": "package"}
        return [message.model_copy(update=energy)]

    streamed = run(Worker(tamper), window=window)
    assert (streamed.timing.energy_start_j, streamed.timing.energy_stop_j) == (6.0, 106.0)
    assert streamed.meter == EnergyMeter("counter", "package")
    assert run(Worker()).meter is None


def without_fence(steps: int) -> Callable[[Message], list[Message]]:
    return lambda m: [] if m.kind == "fence" and m.steps == steps else [m]


def ending_after(done: int) -> Worker:
    worker = Worker()
    worker.stop = done
    return worker


def test_a_worker_that_leaves_start_out_did_not_complete_the_window() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=64)
    with pytest.raises(RunFailedError, match="before the timed window was complete"):
        run(Worker(without_fence(13)), window=window)


@pytest.mark.parametrize("done", [1, 20, 52])
def test_a_worker_that_ends_early_did_not_complete_the_window(done: int) -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)
    with pytest.raises(RunFailedError, match="before the timed window was complete"):
        run(ending_after(done), window=window)


@pytest.mark.parametrize("steps", [3, 53])
def test_a_fence_of_the_window_without_a_loss_is_a_failed_run(steps: int) -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)
    with pytest.raises(RunFailedError, match="no loss"):
        run(Worker(replacing(steps, loss=None)), window=window)


@pytest.mark.parametrize(
    "stray",
    [
        Stop(steps=3),
        StepOrder(index=1, seed=1, fence=False),
        WorkOrder(config=CONFIG, evidence_folder="", collect_evidence=False),
    ],
    ids=lambda message: message.kind,
)
def test_a_message_that_no_worker_has_to_say_is_refused_by_its_kind(stray: Message) -> None:
    worker = Worker()
    worker.outbox.append(stray)
    with pytest.raises(RunFailedError, match=f"the worker said '{stray.kind}' in the middle"):
        run(worker)


@pytest.mark.parametrize("index", [1, 500])
def test_a_step_reported_out_of_turn_is_refused(index: int) -> None:
    worker = Worker()
    worker.outbox.append(Tick(index=index, ns=1))
    with pytest.raises(RunFailedError, match="turn"):
        run(worker)


def test_a_fence_reported_before_its_steps_is_refused() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)
    worker = Worker()
    worker.outbox.extend(fence(steps) for steps in range(3, 54, FENCE_EVERY))
    with pytest.raises(RunFailedError, match="a fence after 3 steps"):
        run(worker, window=window)


def test_a_fence_where_none_was_ordered_is_refused() -> None:
    worker = Worker(lambda m: [m, fence(2)] if m.kind == "tick" and m.index == 1 else [m])
    with pytest.raises(RunFailedError, match="a fence after 2 steps"):
        run(worker)


def test_a_fence_reported_twice_is_refused() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)
    worker = Worker(lambda m: [m, m] if m.kind == "fence" and m.steps == 3 else [m])
    with pytest.raises(RunFailedError, match="a fence after 3 steps"):
        run(worker, window=window)


def test_a_worker_that_is_ready_twice_is_refused() -> None:
    worker = Worker(lambda m: [m, Ready()] if m.kind == "tick" and m.index == 5 else [m])
    with pytest.raises(RunFailedError, match="ready"):
        run(worker)


def test_a_step_reported_before_the_worker_is_ready_is_refused() -> None:
    worker = Worker()
    worker.outbox = deque([Tick(index=0, ns=1)])
    with pytest.raises(RunFailedError, match="turn"):
        run(worker)
    assert worker.sent == []


@pytest.mark.parametrize("seed", range(6))
def test_a_window_of_an_irregular_length_is_driven_to_its_own_stop(seed: int) -> None:
    config = run_config(seed=seed, warmup_steps=3, timed_steps=55)
    window = plan_window(config, 0)
    worker = Worker()
    timing = run(worker, config).timing
    assert timing.timed_steps == 55
    assert timing.stop_ns - timing.start_ns == 55 * 1_000_000
    assert timing.fence_steps[-1] == window.stop
    (stop,) = (message for message in worker.history if isinstance(message, Stop))
    assert worker.history[worker.history.index(stop) - 1].steps == window.stop


# -- patience -------------------------------------------------------------------------------


class Watch:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_ns(self) -> int:
        return int(self.s * 1e9)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    fake = Watch()
    monkeypatch.setattr(clock, "now_ns", fake.now_ns)
    return fake


def silence_borne(patience: Patience, watch: Watch) -> float:
    """Return after how many whole seconds of silence ``patience`` ends."""
    begin = watch.s
    for seconds in range(100_000):
        watch.s = begin + seconds
        try:
            patience.heard(None)
        except RunFailedError:
            return seconds
    raise AssertionError("endless patience")


def test_before_the_first_step_a_worker_may_be_silent_for_an_hour(watch: Watch) -> None:
    assert silence_borne(Patience(), watch) == 3601


def test_any_message_ends_a_silence(watch: Watch) -> None:
    patience = Patience()
    for _ in range(3):
        watch.s += 3000
        patience.heard(Phase(name="x"))
    assert silence_borne(patience, watch) == 3601


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.1, 600), (30, 600), (40, 800)])
def test_afterwards_for_ten_minutes_or_twenty_of_the_longest_steps(
    watch: Watch, step_s: float, limit_s: int
) -> None:
    patience = Patience()
    for index, seconds in enumerate((0.1, step_s, 0.1)):
        watch.s += seconds
        patience.heard(Tick(index=index, ns=1))
    assert silence_borne(patience, watch) == limit_s + 1


def test_what_is_not_a_step_does_not_lengthen_the_patience(watch: Watch) -> None:
    patience = Patience()
    patience.heard(Tick(index=0, ns=1))
    watch.s += 599
    patience.heard(fence(1))
    assert silence_borne(patience, watch) == 601


def test_a_worker_that_hangs_in_the_middle_of_the_stream_is_a_failed_run(watch: Watch) -> None:
    class Hanging(Worker):
        def receive(self, timeout_s: float | None = None) -> Message | None:
            watch.s += 1
            return super().receive(timeout_s) if self.done < 20 else None

    with pytest.raises(RunFailedError, match="silent for 601 s: the device or its plugin hangs"):
        run(Hanging())


def telling(readings: dict[int, dict[str, float]]) -> Callable[[Message], list[Message]]:
    def tamper(message: Message) -> list[Message]:
        if message.kind != "fence":
            return [message]
        return [message.model_copy(update={"telemetry": readings.get(message.steps, {})})]

    return tamper


def test_the_plugins_readings_are_kept_for_every_fence_up_to_stop() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=75)
    readings = {steps: {"power_w": float(steps)} for steps in range(100)}
    timing = run(Worker(telling(readings)), window=window).timing
    assert timing.telemetry == tuple({"power_w": float(s)} for s in (3, 13, 23, 33, 43, 53))
    assert len(timing.telemetry) == len(timing.fence_steps)


def test_a_fence_without_readings_keeps_its_place_among_those_with() -> None:
    window = Window(first_fence=3, start=3, stop=23, end=24)
    timing = run(Worker(telling({13: {"compilations": 1.0}})), window=window).timing
    assert timing.telemetry == ({}, {"compilations": 1.0}, {})


def test_a_plugin_without_readings_leaves_none() -> None:
    assert run(Worker(telling({}))).timing.telemetry == ()
