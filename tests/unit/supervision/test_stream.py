"""The stream of steps: where the window lies, what a worker can tell of it, what is stamped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmb import clock, workloads
from llmb.config import Mode, RunConfig
from llmb.errors import LlmbError, NotEnoughMemoryError, RunFailedError
from llmb.measure import host
from llmb.measure.summary import EnergyMeter
from llmb.records import audited
from llmb.records.draws import FENCE_EVERY, JUDGED_ALONE, Draws, longest_stream
from llmb.records.lacks import Lacks
from llmb.records.run_record import RepeatTiming
from llmb.records.seeds import derive, token_seed
from llmb.supervision.silence import Silence
from llmb.supervision.stream import (
    AuditedRequest,
    Patience,
    Streamed,
    Window,
    drive,
    plan_trial,
    plan_window,
)
from llmb.supervision.time_stamps import RepeatStamps
from llmb.wire.messages import (
    AuditRequest,
    EvidenceFile,
    Fence,
    KeepWeights,
    Message,
    Paused,
    Phase,
    Proceed,
    Readings,
    Ready,
    Sampled,
    ShownStep,
    StepDraw,
    StepOrder,
    Stopped,
    StreamEnded,
    Tick,
    Worked,
    WorkOrder,
)
from tests.unit.builders_runtime import fence, readings, run_config

SECRETS = range(200)
CONFIG = run_config(warmup_steps=3)
STEP_NS = 1_000_000
NONCE, OTHER = "ab" * 16, "cd" * 16
OPTIMIZER = workloads.WORKLOADS["llama-1.4b"].recipe.optimizer


# -- the plan -------------------------------------------------------------------------------


def planned(config: RunConfig, secret: int, *, ledger: bool = False) -> Window:
    return plan_window(config, Draws(f"{secret:032x}", OPTIMIZER, ledger=ledger))


@pytest.mark.parametrize("secret", SECRETS)
def test_start_is_the_first_or_the_second_fence_and_stop_exactly_the_timed_steps_later(
    secret: int,
) -> None:
    window = planned(run_config(warmup_steps=3, timed_steps=60), secret)
    assert window.first_fence == 3
    assert window.start in (3, 3 + FENCE_EVERY)
    assert window.stop == window.start + 60
    assert 1 <= window.end - window.stop <= 4


def test_over_secrets_both_starts_and_every_tail_occur() -> None:
    windows = [planned(CONFIG, secret) for secret in SECRETS]
    assert 70 < sum(window.start == window.first_fence for window in windows) < 130
    assert {window.end - window.stop for window in windows} == {1, 2, 3, 4}


def test_the_window_follows_from_its_secret_and_not_from_the_seed_that_a_submitter_chooses() -> (
    None
):
    windows = {planned(run_config(seed=seed), 5) for seed in range(50)}
    assert windows == {planned(run_config(seed=7), 5)}
    assert len({planned(CONFIG, secret) for secret in SECRETS}) > 190


FORWARD = run_config(mode=Mode.FORWARD, warmup_steps=3, timed_steps=20)


@pytest.mark.parametrize("secret", SECRETS)
def test_without_training_a_call_of_the_warm_up_is_audited_and_two_of_the_window(
    secret: int,
) -> None:
    window = planned(FORWARD, secret)
    first, *inside = window.audits
    assert first == window.start - 2
    assert len(set(inside)) == 2
    assert window.start <= min(inside) < max(inside) < window.stop
    assert list(window.audits) == sorted(window.audits)
    assert window.judged == ()


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("secret", SECRETS)
def test_of_a_training_one_step_is_audited_and_others_are_judged(
    secret: int, *, ledger: bool
) -> None:
    timed = 90 if ledger else 20  # too many to compare every step
    window = planned(run_config(warmup_steps=3, timed_steps=timed), secret, ledger=ledger)
    first, inside = window.audits
    assert not window.every_step
    assert first == window.start - 2
    assert window.start <= inside < window.stop
    assert JUDGED_ALONE[0] <= len(window.judged) <= JUDGED_ALONE[1]
    assert {*window.judged} <= {*range(window.start, window.stop)} - {inside}


@pytest.mark.parametrize("config", [FORWARD, run_config(timed_steps=20)], ids=["forward", "train"])
def test_over_secrets_every_step_of_the_window_is_audited_at_some_time(config: RunConfig) -> None:
    audited = set()
    for secret in SECRETS:
        window = planned(config, secret)
        audited |= {step - window.start for step in window.audits}
    assert audited == {-2, *range(20)}


@pytest.mark.parametrize("secret", SECRETS)
def test_the_last_call_is_an_odd_number_of_calls_after_the_last_audited_one(secret: int) -> None:
    window = planned(FORWARD, secret)
    assert (window.end - window.audits[-1]) % 2 == 1


@pytest.mark.parametrize(("timed_steps", "inside"), [(1, 1), (2, 2), (3, 2)])
def test_a_window_too_short_for_two_audits_has_as_many_as_there_is_room_for(
    timed_steps: int, inside: int
) -> None:
    changes = {"timed_steps": timed_steps, "warmup_steps": 3}
    window = planned(FORWARD.model_copy(update=changes), 0)
    assert len(window.audits) == 1 + inside
    window = planned(run_config(**changes), 0)
    assert len(window.audits) == 2
    assert timed_steps > len(window.judged) >= min(1, timed_steps - 1)


def test_where_every_step_is_compared_one_of_the_window_is_audited_and_one_before() -> None:
    audited = set()
    for secret in SECRETS:
        window = planned(run_config(timed_steps=20), secret, ledger=True)
        assert window.every_step
        early, step = window.audits
        assert early < window.start
        audited.add(step - window.start)
        assert {*window.judged} <= {*range(window.start, window.stop)} - {step}
        assert window.judged
    assert audited == set(range(20))


def test_fences_come_every_ten_steps_from_the_end_of_warm_up_for_ever() -> None:
    window = planned(CONFIG, 0)
    fences = [steps for steps in range(200) if window.is_fence(steps)]
    assert fences == list(range(3, 200, FENCE_EVERY))


@pytest.mark.parametrize("secret", range(20))
def test_a_window_of_any_length_ends_in_a_fence(secret: int) -> None:
    window = planned(run_config(timed_steps=7), secret)
    assert window.is_fence(window.start)
    assert window.is_fence(window.stop)


def test_nothing_in_the_orders_tells_one_start_from_the_other() -> None:
    # Two secrets with different windows: what is ordered has its fences at the same steps.
    by_start = {}
    for secret in SECRETS:
        window = planned(CONFIG, secret)
        by_start[window.start] = [window.is_fence(steps) for steps in range(100)]
    first, second = by_start.values()
    assert first == second


@pytest.mark.parametrize("timed_steps", [51, 55, 99])
def test_nothing_tells_stop_whatever_number_of_steps_is_official(timed_steps: int) -> None:
    by_start = {}
    for secret in SECRETS:
        window = planned(run_config(timed_steps=timed_steps), secret)
        by_start[window.start] = [window.is_fence(steps) for steps in range(window.stop + 1)]
    first, second = by_start.values()
    assert all(a == b for a, b in zip(first, second, strict=False))


def test_a_trial_measures_from_the_first_fence_does_no_step_more_and_audits_none() -> None:
    window = plan_trial(run_config(warmup_steps=2, timed_steps=3))
    assert window == Window(first_fence=2, start=2, stop=5, end=5, audits=())


def test_derived_seeds_are_63_bits_distinct_and_a_function_of_seed_and_label() -> None:
    labels = [("model",), ("window", 0), ("step", 0, 1), ("step", 1, 0), ("step", 1, 1)]
    drawn = {derive(seed, *label) for seed in range(50) for label in labels}
    assert len(drawn) == 50 * len(labels)
    assert all(0 <= number < 2**63 for number in drawn)
    assert max(drawn) > 2**61
    assert derive(7, "model") == derive(7, "model")


@pytest.mark.parametrize("timed_steps", [51, 55, 99])
@pytest.mark.parametrize("secret", range(6))
def test_an_irregular_stop_has_a_double_where_the_other_start_would_put_it(
    timed_steps: int, secret: int
) -> None:
    window = planned(run_config(warmup_steps=3, timed_steps=timed_steps), secret)
    regular = set(range(3, 150, FENCE_EVERY))
    irregular = {steps for steps in range(150) if window.is_fence(steps)} - regular
    assert irregular == {3 + timed_steps, 13 + timed_steps}
    assert window.stop in irregular


# -- the drive ------------------------------------------------------------------------------


class Worker:
    """A worker in this process, on a clock of its own: 1 ms a step, its pause three quarters in.

    ``tamper`` may change what it says. What it says has been sent the moment it is done with it.
    """

    module, pid = "llmb.processes.worker", 4711

    def __init__(self, tamper: Callable[[Message], list[Message]] = lambda m: [m]) -> None:
        self.orders: deque[StepOrder] = deque()
        self.sent: list[StepOrder] = []
        #: Answer in the pause of each step, and the step in whose pause the stream ended.
        self.answers: dict[int, Proceed | AuditRequest | KeepWeights] = {}
        #: The order to sample, by step.
        self.draws: dict[int, StepDraw] = {}
        self.ended_in: int | None = None
        self.stops_at: int | None = None
        self.done = self.now = self.stopped_ns = 0
        #: Writing the weights of a judged step.
        self.writing = False
        self.wrote: list[int] = []
        self.received_ns = 0
        self.outbox: deque[Message | None] = deque([Phase(name="training"), Ready()])
        self.tamper = tamper
        self.paused = False
        #: What was said and heard, in order.
        self.history: list[Message | None] = []
        self.finished = False

    @property
    def audited(self) -> list[int]:
        """Steps that were looked at, the last one left out."""
        asked = (n for n, a in self.answers.items() if isinstance(a, AuditRequest) and not a.last)
        return sorted(asked)

    @property
    def judges(self) -> bool:
        """Whether the present step is judged, and its weights are still to be written."""
        return isinstance(self.answers.get(self.done), KeepWeights) and self.done not in self.wrote

    def send(self, message: Message) -> None:
        self.history.append(message)
        if isinstance(message, Proceed) and self.writing:
            self.writing, self.stopped_ns = False, self.stopped_ns + message.stopped_ns
        elif isinstance(message, StepDraw):
            assert self.paused
            assert self.done not in self.draws
            self.draws[self.done] = message
            row = f"{self.done:064x}"
            self.outbox.extend(self.tamper(Sampled(index=self.done, commitment=row)))
        elif isinstance(message, (Proceed, AuditRequest, KeepWeights)):
            assert self.paused, "an answer to a question that was not asked"
            assert self.done not in self.answers
            self.answers[self.done] = message
        else:
            assert isinstance(message, StepOrder)
            self.sent.append(message)
            self.orders.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        assert timeout_s is not None, "the display may redraw while a step is running"
        while not self.outbox:
            unanswered = self.paused and self.done not in self.answers
            if unanswered or self.writing or not (self.orders or self.judges):
                self.now += int(timeout_s * 1e9)
                return None
            for message in self.work():
                self.outbox.extend(self.tamper(message))
        message = self.outbox.popleft()
        if isinstance(message, EvidenceFile) and self.writing:
            self.now += 40 * STEP_NS
        self.received_ns = self.now
        self.history.append(message)
        return message

    def work(self) -> list[Message]:
        """Go on to the pause of the present step, or from there to its end."""
        assert not self.finished, "the supervisor listens to a worker that has ended"
        if not self.paused:
            self.paused = True
            self.now = self.stopped_ns + self.done * STEP_NS + STEP_NS * 3 // 4
            return [Paused(index=self.done, glanced="4" * 64)]
        answer = self.answers[self.done]
        if self.judges:
            return self.write()
        if self.done == self.stops_at or (isinstance(answer, AuditRequest) and answer.last):
            self.ended_in = self.done
            self.finished = True
            told: list[Message] = [] if self.done == self.stops_at else [StreamEnded()]
            return [*told, *self.evidence(), Worked(steps=self.done)]
        order = self.orders.popleft()
        assert order.index == self.done
        self.done += 1
        self.now, self.paused = self.stopped_ns + self.done * STEP_NS, False
        now = self.now - self.stopped_ns
        said: list[Message] = [Tick(index=order.index, ns=now - 5)]
        if order.fence:
            audited = tuple(self.audited)
            said.append(fence(self.done, worker_ns=now - 1, audited_steps=audited))
            said.append(readings(self.done))
        return said

    def write(self) -> list[Message]:
        """Write the weights of the judged step, which takes as long as forty steps."""
        self.wrote.append(self.done)
        self.writing = True
        file, answer = audited.judged_weights(self.done), self.answers[self.done]
        assert isinstance(answer, KeepWeights)
        row = f"{self.done:064x}" if self.done in self.draws else ""
        digest = "3" * 64 if answer.seed is not None else ""
        return [
            ShownStep(index=self.done, commitment=row, digest=digest, glanced="4" * 64),
            Stopped(index=self.done),
            EvidenceFile(name=file, sha256="2" * 64, scratch=True),
        ]

    def evidence(self) -> list[Message]:
        return [
            EvidenceFile(name="a.json", sha256="0" * 64),
            EvidenceFile(name="weights", sha256="1" * 64, scratch=True),
        ]


def run(
    worker: Worker,
    config: RunConfig = CONFIG,
    window: Window | None = None,
    *,
    repeat: int = 0,
    nonce: str = NONCE,
    ledger: bool = False,
    display: Callable[[Message | None], None] = lambda message: None,
    stamps: RepeatStamps | None = None,
) -> Streamed:
    window = window or planned(config, 0)
    drawn = Draws(nonce, OPTIMIZER, ledger=ledger)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now_ns", lambda: worker.now)
        return drive(worker, config, window, repeat, drawn, "host", display, stamps=stamps)


@pytest.fixture(params=range(6))
def stamped(request: pytest.FixtureRequest) -> tuple[Window, RepeatTiming]:
    """Return one of several windows, and what was stamped of a run in it."""
    window = planned(CONFIG, request.param)
    return window, run(Worker(), window=window).timing


def test_the_window_is_stamped_on_arrival_of_its_first_and_last_fence(
    stamped: tuple[Window, RepeatTiming],
) -> None:
    window, timing = stamped
    assert (timing.warmup_steps, timing.timed_steps) == (window.start, 50)
    assert timing.start_ns == window.start * STEP_NS
    assert timing.stop_ns == window.stop * STEP_NS


def test_every_fence_and_step_is_stamped_until_the_window_ends(
    stamped: tuple[Window, RepeatTiming],
) -> None:
    window, timing = stamped
    assert timing.fence_steps == tuple(range(3, window.stop + 1, FENCE_EVERY))
    assert timing.fence_ns == tuple(steps * STEP_NS for steps in timing.fence_steps)
    assert timing.fence_worker_ns == tuple(ns - 1 for ns in timing.fence_ns)
    assert timing.step_ns == tuple(n * STEP_NS - 5 for n in range(1, window.stop + 1))
    assert timing.step_clock == "host"


def test_loss_and_processor_time_are_those_at_the_ends_of_the_window(
    stamped: tuple[Window, RepeatTiming],
) -> None:
    window, timing = stamped
    assert timing.loss_first == 10.0 - window.start / 100
    assert timing.loss_last == 10.0 - window.stop / 100
    assert timing.cpu_s == pytest.approx(5.0)


def test_nothing_that_came_after_stop_is_part_of_the_run() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=75)
    timing = run(Worker(), window=window).timing
    assert timing.fence_steps[-1] == 53
    assert timing.fence_ns[-1] == timing.stop_ns
    assert len(timing.step_ns) == 53


def test_the_tokens_of_a_step_are_ordered_with_the_answer_in_the_pause_before_it() -> None:
    worker = Worker()
    window = planned(CONFIG, 0)
    run(worker, window=window)
    done = ordered = paused = 0
    for message in worker.history:
        if isinstance(message, Tick):
            done = message.index + 1
        elif isinstance(message, Paused):
            paused = message.index + 1
        elif isinstance(message, StepOrder):
            ordered += 1
            assert message.index in (paused, done)
        assert ordered <= done + 1 + (paused > done), "no further ahead than one step"
        if isinstance(message, (Phase, Ready)):
            assert ordered == 0  # post-processing may still be going on
        if isinstance(message, Tick) and not window.is_fence(done):
            assert ordered == done + 1, "the worker does not have to wait for its order"
    assert [order.index for order in worker.sent] == list(range(len(worker.sent)))


def test_nothing_of_the_steps_after_a_fence_is_known_before_it_is_stamped() -> None:
    worker = Worker()
    window = planned(CONFIG, 0)
    run(worker, window=window)
    fences = [m for m in worker.history if isinstance(m, Fence)]
    assert window.start in [each.steps for each in fences]
    for each in fences:
        before = worker.history[: worker.history.index(each)]
        known = [m.index for m in before if isinstance(m, StepOrder)]
        assert max(known) == each.steps - 1


def test_no_seed_is_sent_before_the_worker_says_that_post_processing_is_over() -> None:
    worker = Worker()
    worker.outbox = deque([Phase(name="post-processing"), None, Phase(name="training")])
    with pytest.raises(RunFailedError, match="silent"):
        run(worker)
    assert worker.sent == []
    assert worker.answers == {}


# -- requests to audit ----------------------------------------------------------------------


def test_every_step_asks_in_its_pause_and_only_those_planned_are_looked_at() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=66, audits=(12, 20, 61))
    worker = Worker()
    timing = run(worker, window=window).timing
    assert sorted(worker.answers) == list(range(67))
    assert worker.audited == [12, 20, 61]
    assert timing.audited_steps == (12, 20, 61)
    assert worker.ended_in == 66


def test_until_it_has_asked_nothing_that_a_worker_is_sent_tells_an_audited_step() -> None:
    orders = []
    for audits in ((12, 20, 61), (12, 33, 40)):
        worker = Worker()
        run(worker, window=Window(first_fence=3, start=13, stop=63, end=66, audits=audits))
        orders.append(worker.sent)
        said = [m for m in worker.history if not isinstance(m, StepOrder)]
        for index in audits:
            answer = said.index(worker.answers[index])
            assert said[answer - 1] == Paused(index=index, glanced="4" * 64)
    assert orders[0] == orders[1]


@pytest.mark.parametrize("secret", range(10))
def test_the_end_is_told_in_the_pause_of_the_last_step_and_nowhere_else(secret: int) -> None:
    window = planned(CONFIG, secret)
    worker = Worker()
    run(worker, window=window)
    assert worker.ended_in == window.end
    last = [n for n, a in worker.answers.items() if isinstance(a, AuditRequest) and a.last]
    assert last == [window.end]
    told = worker.history.index(worker.answers[window.end])
    stop = [i for i, m in enumerate(worker.history) if m and m.kind == "fence"]
    assert any(worker.history[i].steps == window.stop and i < told for i in stop)


def test_a_trial_audits_nothing_and_ends_at_stop() -> None:
    worker = Worker()
    run(worker, window=plan_trial(run_config(warmup_steps=2, timed_steps=3)))
    assert worker.audited == []
    assert worker.ended_in == 5


def test_before_the_pause_it_ends_in_nothing_that_was_sent_tells_the_end() -> None:
    worker = Worker()
    run(worker, window=planned(CONFIG, 0))
    assert worker.ended_in is not None
    before = worker.history[: worker.history.index(worker.answers[worker.ended_in])]
    orders = [message.index for message in before if isinstance(message, StepOrder)]
    assert orders == list(range(worker.ended_in + 1))
    assert not any(isinstance(m, AuditRequest) and m.last for m in before)


def test_what_the_worker_was_asked_for_is_known_with_the_seeds_it_was_given() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=66, audits=(12, 20, 61))
    worker = Worker()
    streamed = run(worker, window=window, repeat=2)
    tokens = {order.index: order.seed for order in worker.sent}
    assert dict(streamed.asked) == {
        index: AuditedRequest(worker.answers[index].seed, tokens[index], last=index == 66)
        for index in (12, 20, 61, 66)
    }


def test_of_a_worker_that_died_before_its_end_it_is_known_what_it_was_asked_for_until_then() -> (
    None
):
    window = Window(first_fence=3, start=3, stop=53, end=56, audits=(2, 20, 41))
    streamed = run(Dying(lambda m: m.kind == "tick" and m.index == 54, DEATH), window=window)
    assert sorted(streamed.asked) == [2, 20, 41]


def test_every_request_has_a_seed_of_its_own_that_follows_from_the_nonce_alone() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=66, audits=(12, 20, 61))
    seeds = {}
    for nonce, config in ((NONCE, CONFIG), (OTHER, CONFIG), (NONCE, run_config(seed=8))):
        worker = Worker()
        run(worker, config, window, nonce=nonce)
        asked = [a.seed for a in worker.answers.values() if isinstance(a, AuditRequest)]
        assert not {order.seed for order in worker.sent} & set(asked)
        seeds[nonce, config.seed] = asked
    assert seeds[NONCE, 7] == seeds[NONCE, 8]
    assert len({*seeds[NONCE, 7], *seeds[OTHER, 7]}) == 8


@pytest.mark.parametrize(
    ("config", "shorter"), [(CONFIG, 1), (FORWARD, 0)], ids=["train", "forward"]
)
def test_no_stream_is_longer_than_is_said_beforehand(config: RunConfig, shorter: int) -> None:
    steps = [planned(config, secret).steps for secret in range(500)]
    longest = longest_stream(config.mode.value, config.warmup_steps, config.timed_steps)
    assert max(steps) == longest - shorter


def test_two_runs_with_one_seed_have_different_tokens() -> None:
    first, second = (run(Worker(), nonce=nonce).token_seeds for nonce in (NONCE, OTHER))
    assert not {*first} & {*second}


def committing(message: Message) -> list[Message]:
    """Say what a worker says that keeps a ledger: its step in hexadecimal, in the next pause."""
    if isinstance(message, Paused) and message.index:
        row = f"{message.index - 1:064x}"
        return [message.model_copy(update={"commitment": row})]
    if isinstance(message, StreamEnded):
        return [StreamEnded(commitment=f"{planned(CONFIG, 0).end:064x}")]
    return [message]


def test_with_a_ledger_each_step_is_told_its_places_and_its_rate() -> None:
    worker, window = Worker(committing), planned(CONFIG, 0)
    run(worker, window=window, ledger=True)
    drawn = Draws(NONCE, OPTIMIZER, ledger=True)
    assert worker.draws == {
        n: StepDraw(places=drawn.places(n), rate=drawn.rate(n)) for n in range(window.steps)
    }


def test_what_was_committed_to_is_kept_with_the_nonce_and_all_token_seeds() -> None:
    worker, window = Worker(committing), planned(CONFIG, 0)
    streamed = run(worker, window=window, ledger=True)
    assert streamed.timing.nonce == NONCE
    assert streamed.timing.commitments == tuple(f"{n:064x}" for n in range(window.steps))
    seeds = tuple(token_seed(CONFIG.seed, 0, n, NONCE) for n in range(window.end))
    assert streamed.token_seeds[: window.end] == seeds


def test_a_step_without_its_commitment_is_refused() -> None:
    with pytest.raises(RunFailedError, match="committed to nothing of step 0"):
        run(Worker(), ledger=True)


def test_a_last_step_without_its_commitment_is_refused() -> None:
    def forgetful(message: Message) -> list[Message]:
        return [message] if isinstance(message, StreamEnded) else committing(message)

    end = planned(CONFIG, 0).end
    with pytest.raises(RunFailedError, match=f"committed to nothing of step {end}"):
        run(Worker(forgetful), ledger=True, window=planned(CONFIG, 0))


def test_a_commitment_that_nobody_asked_for_is_refused() -> None:
    with pytest.raises(RunFailedError, match="committed to what nobody asked for"):
        run(Worker(committing))


# -- judged steps ---------------------------------------------------------------------------

WITH_JUDGED = Window(
    first_fence=3, start=3, stop=53, end=55, audits=(30,), judged=(12, 20, 52), every_step=True
)


def ending_at(window: Window) -> Callable[[Message], list[Message]]:
    def said(message: Message) -> list[Message]:
        if isinstance(message, StreamEnded):
            return [StreamEnded(commitment=f"{window.end:064x}")]
        return committing(message)

    return said


def test_the_clock_stands_still_while_the_weights_of_judged_steps_are_written() -> None:
    worker = Worker(ending_at(WITH_JUDGED))
    timing = run(worker, window=WITH_JUDGED, ledger=True).timing
    assert [(stop.step, stop.ns) for stop in timing.stops] == [
        (step, 40 * STEP_NS) for step in WITH_JUDGED.judged
    ]
    assert [stop.at_ns for stop in timing.stops] == [
        step * STEP_NS + STEP_NS * 3 // 4 for step in WITH_JUDGED.judged
    ]
    assert timing.stop_ns - timing.start_ns == 50 * STEP_NS
    assert timing.fence_ns == tuple(steps * STEP_NS for steps in timing.fence_steps)
    assert timing.fence_worker_ns == tuple(ns - 1 for ns in timing.fence_ns)
    assert timing.tail is not None
    assert timing.tail.paused_ns == WITH_JUDGED.end * STEP_NS + STEP_NS * 3 // 4


def test_while_the_clock_stands_still_the_worker_knows_no_tokens_of_the_next_step() -> None:
    worker = Worker(ending_at(WITH_JUDGED))
    streamed = run(worker, window=WITH_JUDGED, ledger=True)
    for step in WITH_JUDGED.judged:
        wrote = worker.history.index(
            EvidenceFile(name=audited.judged_weights(step), sha256="2" * 64, scratch=True)
        )
        before = [m.index for m in worker.history[:wrote] if isinstance(m, StepOrder)]
        assert max(before) == step
        assert streamed.scratch[audited.judged_weights(step)] == "2" * 64


def test_until_it_has_paused_nothing_that_a_worker_is_sent_tells_a_judged_step() -> None:
    plain = Window(first_fence=3, start=3, stop=53, end=55, audits=(30,), every_step=True)
    sent = []
    for window in (plain, WITH_JUDGED):
        worker = Worker(ending_at(window))
        run(worker, window=window, ledger=True)
        sent.append([(m.index, m.seed, m.fence) for m in worker.sent])
    assert sent[0] == sent[1]


@pytest.mark.parametrize("device", ["cpu", "acme:0"])
@pytest.mark.parametrize(("kind", "step"), [(Sampled, 0), (ShownStep, 12)])
def test_samples_that_change_after_the_answer_are_refused(
    device: str, kind: type[Sampled | ShownStep], step: int
) -> None:
    """A device that still computes commits a step later."""

    def changed(message: Message) -> list[Message]:
        if isinstance(message, kind):
            return [message.model_copy(update={"commitment": "e" * 64})]
        if isinstance(message, Sampled) and device != "cpu":
            return [Sampled(index=message.index)]
        return ending_at(WITH_JUDGED)(message)

    config = CONFIG.model_copy(update={"device": device})
    with pytest.raises(RunFailedError, match=f"samples of step {step} changed after the worker"):
        run(Worker(changed), config, WITH_JUDGED, ledger=True)


def test_a_blind_sample_that_changes_once_the_step_is_judged_is_refused() -> None:
    window = replace(WITH_JUDGED, every_step=False)

    def changed(message: Message) -> list[Message]:
        update = {"glanced": "5" * 64} if isinstance(message, ShownStep) else {}
        return [message.model_copy(update=update)]

    assert run(Worker(), window=window).timing.stops
    with pytest.raises(RunFailedError, match="samples of step 12 changed after the worker"):
        run(Worker(changed), window=window)


@pytest.mark.parametrize("ledger", [True, False])
def test_on_the_cpu_a_digest_leaves_before_the_answer(ledger: bool) -> None:
    def silent(message: Message) -> list[Message]:
        if isinstance(message, Sampled | Paused):
            return [type(message)(index=message.index)]
        return [message]

    window = replace(WITH_JUDGED, every_step=ledger)
    with pytest.raises(RunFailedError, match="no digest of the samples of step 0"):
        run(Worker(silent), window=window, ledger=ledger)


def test_no_worker_is_told_of_a_judged_step_before_its_samples_are_read() -> None:
    worker = Worker(ending_at(WITH_JUDGED))
    run(worker, window=WITH_JUDGED, ledger=True)
    said = [m for m in worker.history if isinstance(m, StepDraw | Sampled | KeepWeights)]
    before = [said[n - 2 : n] for n, m in enumerate(said) if isinstance(m, KeepWeights)]
    kinds = [[type(m) for m in pair] for pair in before]
    assert kinds == [[StepDraw, Sampled]] * len(WITH_JUDGED.judged)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (Tick(index=0, ns=9), "reported step 0 out of turn"),
        (Sampled(index=1), "sampled step 1 out of turn"),
    ],
)
def test_a_worker_that_goes_on_before_its_samples_are_read_is_refused(
    said: Message, message: str
) -> None:
    worker = Worker(lambda m: [said] if isinstance(m, Sampled) else [m])
    with pytest.raises(RunFailedError, match=message):
        run(worker, ledger=True)


def test_samples_that_nobody_asked_for_are_refused() -> None:
    worker = Worker(lambda m: [m, Sampled(index=0)] if isinstance(m, Paused) else [m])
    with pytest.raises(RunFailedError, match="sampled step 0 out of turn"):
        run(worker)


def test_a_worker_that_stops_the_clock_by_itself_is_refused() -> None:
    def told(message: Message) -> list[Message]:
        found = ending_at(WITH_JUDGED)(message)
        if isinstance(message, Tick) and message.index == 7:
            found = [Stopped(index=7), *found]
        return found

    with pytest.raises(RunFailedError, match="stopped in step 7 out of turn"):
        run(Worker(told), window=WITH_JUDGED, ledger=True)


@pytest.mark.parametrize("shown", [[], [7]], ids=["not shown", "shown of another step"])
def test_the_clock_stops_only_once_the_gradients_of_the_step_were_shown(shown: list[int]) -> None:
    def told(message: Message) -> list[Message]:
        if isinstance(message, ShownStep):
            return [message.model_copy(update={"index": index}) for index in shown]
        return ending_at(WITH_JUDGED)(message)

    with pytest.raises(RunFailedError, match=r"(stopped in step 12|showed step 7) out of turn"):
        run(Worker(told), window=WITH_JUDGED, ledger=True)


def test_other_weights_than_the_judged_steps_are_refused() -> None:
    def other(message: Message) -> list[Message]:
        if isinstance(message, EvidenceFile) and message.name.startswith("judged"):
            return [message.model_copy(update={"name": "judged-7.safetensors"})]
        return ending_at(WITH_JUDGED)(message)

    with pytest.raises(RunFailedError, match=r"wrote judged-7\.safetensors where the weights"):
        run(Worker(other), window=WITH_JUDGED, ledger=True)


@pytest.mark.parametrize(
    "index", [0, 5, 7, 500], ids=["long ago", "again", "too early", "never sent"]
)
def test_a_pause_out_of_turn_is_refused(index: int) -> None:
    worker = Worker(
        lambda m: [m, Paused(index=index)] if m.kind == "paused" and m.index == 5 else [m]
    )
    with pytest.raises(RunFailedError, match=f"paused in step {index} out of turn"):
        run(worker)


def test_a_pause_before_the_worker_is_ready_is_refused() -> None:
    worker = Worker()
    worker.outbox = deque([Paused(index=0)])
    with pytest.raises(RunFailedError, match="turn"):
        run(worker)


# -- what is kept ---------------------------------------------------------------------------


def test_every_step_has_a_seed_of_its_own_that_no_other_repeat_or_run_uses() -> None:
    seeds: set[int] = set()
    count = 0
    for seed, repeat in ((1, 0), (1, 1), (2, 0)):
        worker, config = Worker(), run_config(seed=seed)
        run(worker, config, repeat=repeat)
        seeds |= {order.seed for order in worker.sent}
        count += len(worker.sent)
    assert len(seeds) == count


def test_the_display_is_shown_phases_steps_fences_and_that_time_passes() -> None:
    shown: list[Message | None] = []
    worker = Worker()
    worker.outbox.appendleft(None)
    run(worker, display=shown.append)
    kinds = [message and message.kind for message in shown]
    assert [kind for kind in kinds if kind][:2] == ["phase", "tick"]
    assert kinds[0] is None
    assert set(kinds) == {None, "phase", "tick", "fence"}


def test_evidence_is_remembered_by_name_and_digest_apart_from_what_is_only_lent() -> None:
    streamed = run(Worker())
    assert streamed.evidence == {"a.json": "0" * 64}
    judged = map(audited.judged_weights, streamed.shown)
    assert streamed.scratch == {"weights": "1" * 64, **dict.fromkeys(judged, "2" * 64)}
    assert streamed.shown
    assert streamed.failure is None


class Dying(Worker):
    """A worker that dies before it says ``kind`` for the ``at``-th time, or a step number."""

    def __init__(self, dies: Callable[[Message], bool], error: LlmbError) -> None:
        super().__init__()
        self.dies, self.error = dies, error

    def receive(self, timeout_s: float | None = None) -> Message | None:
        message = super().receive(timeout_s)
        if message is not None and self.dies(message):
            raise self.error
        return message


DEATH = RunFailedError("llmb.processes.worker was killed by SIGKILL")


@pytest.mark.parametrize(
    "dies",
    [
        lambda m: m.kind == "worked",
        lambda m: m.kind == "evidence",
        lambda m: m.kind == "tick" and m.index == 53,
    ],
    ids=["at the very end", "while it writes evidence", "in the tail"],
)
@pytest.mark.parametrize("error", [DEATH, NotEnoughMemoryError("out of memory")], ids=repr)
def test_a_worker_that_dies_after_its_window_leaves_its_stamps_and_why_it_died(
    dies: Callable[[Message], bool], error: LlmbError
) -> None:
    window = Window(first_fence=3, start=3, stop=53, end=55, audits=(20,))
    streamed = run(Dying(dies, error), window=window)
    assert streamed.failure is error
    whole = run(Worker(), window=window)
    assert streamed.timing == whole.timing.model_copy(update={"tail": streamed.timing.tail})


def test_what_a_dying_worker_had_announced_is_still_known() -> None:
    streamed = run(Dying(lambda m: m.kind == "worked", DEATH))
    assert streamed.evidence == {"a.json": "0" * 64}
    assert streamed.scratch["weights"] == "1" * 64


@pytest.mark.parametrize("index", [0, 30, 52])
def test_a_worker_that_dies_within_its_window_has_failed(index: int) -> None:
    window = Window(first_fence=3, start=3, stop=53, end=55)
    with pytest.raises(RunFailedError, match="SIGKILL"):
        run(Dying(lambda m: m.kind == "tick" and m.index == index, DEATH), window=window)


def test_a_worker_that_dies_with_the_fence_of_stop_unsaid_has_failed() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=55)
    with pytest.raises(RunFailedError, match="SIGKILL"):
        run(Dying(lambda m: m.kind == "fence" and m.steps == 53, DEATH), window=window)


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
        if message.kind != "readings":
            return [message]
        energy = {"energy_j": message.steps * 2.0}
        energy |= {"energy_source": "counter", "energy_scope": "package"}
        return [message.model_copy(update=energy)]

    streamed = run(Worker(tamper), window=window)
    assert (streamed.timing.energy_start_j, streamed.timing.energy_stop_j) == (6.0, 106.0)
    assert streamed.meter == EnergyMeter("counter", "package")
    assert run(Worker()).meter is None


def without_fence(steps: int) -> Callable[[Message], list[Message]]:
    left_out = ("fence", "readings")
    return lambda m: [] if m.kind in left_out and m.steps == steps else [m]


def ending_after(done: int) -> Worker:
    worker = Worker()
    worker.stops_at = done
    return worker


def test_a_worker_that_leaves_a_fence_out_gets_no_further() -> None:
    window = Window(first_fence=3, start=13, stop=63, end=64)
    with pytest.raises(RunFailedError, match="silent"):
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
        AuditRequest(seed=3, last=True),
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


def test_readings_that_follow_no_fence_are_refused() -> None:
    worker = Worker(lambda m: [m, readings(2)] if m.kind == "tick" and m.index == 1 else [m])
    with pytest.raises(RunFailedError, match="readings of 2 steps out of turn"):
        run(worker)


def test_readings_of_another_fence_are_refused() -> None:
    worker = Worker(lambda m: [readings(9)] if m.kind == "readings" else [m])
    with pytest.raises(RunFailedError, match="readings of 9 steps out of turn"):
        run(worker)


def test_a_worker_that_owes_readings_takes_no_further_step() -> None:
    worker = Worker(lambda m: [] if m.kind == "readings" else [m])
    with pytest.raises(RunFailedError, match="turn"):
        run(worker)


def test_a_fence_is_stamped_though_its_readings_take_long() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=54)

    class Slow(Worker):
        def receive(self, timeout_s: float | None = None) -> Message | None:
            message = super().receive(timeout_s)
            if isinstance(message, Readings):
                self.now = self.received_ns = self.now + STEP_NS // 2
            return message

    timing = run(Slow(), window=window).timing
    assert (timing.start_ns, timing.stop_ns) == (3 * STEP_NS, 53 * STEP_NS)


def test_the_tail_is_stamped_from_the_last_pause_to_the_answer() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=55)
    tail = run(Worker(), window=window).timing.tail
    assert tail is not None
    last = 55 * STEP_NS + STEP_NS * 3 // 4
    assert (tail.steps, tail.paused_ns, tail.ended_ns) == (2, last, last)


def test_a_worker_that_gives_no_answer_to_the_last_step_has_no_tail() -> None:
    assert run(Worker(lambda m: [] if m.kind == "ended" else [m])).timing.tail is None


def test_an_end_that_nobody_asked_for_is_refused() -> None:
    worker = Worker(lambda m: [m, StreamEnded()] if m.kind == "tick" and m.index == 5 else [m])
    with pytest.raises(RunFailedError, match="ended its stream before"):
        run(worker)


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


@pytest.mark.parametrize("secret", range(6))
def test_a_window_of_an_irregular_length_is_driven_to_its_own_stop(secret: int) -> None:
    window = planned(run_config(warmup_steps=3, timed_steps=55), secret)
    worker = Worker()
    timing = run(worker, window=window).timing
    assert timing.timed_steps == 55
    assert timing.stop_ns - timing.start_ns == 55 * STEP_NS
    assert timing.fence_steps[-1] == window.stop
    assert worker.ended_in == window.end


# -- signs of life --------------------------------------------------------------------------


class Slow(Worker):
    """A worker that says nothing for ``minutes`` before the end of the step ``of``."""

    minutes = 3

    def __init__(self, of: int) -> None:
        super().__init__()
        self.of, self.left = of, 60 * self.minutes

    def receive(self, timeout_s: float | None = None) -> Message | None:
        if self.done != self.of or not self.left or not self.paused:
            return super().receive(timeout_s)
        self.left -= 1
        self.now += 1_000_000_000
        return None


@pytest.mark.parametrize("step", [0, 7])
def test_a_step_of_minutes_is_shown_to_be_alive_from_the_second_minute_on(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Slow(step)
    monkeypatch.setattr(host, "cpu_s_of", lambda pid: 1.75 * worker.now / 1e9)
    shown: list[Any] = []
    run(worker, display=shown.append)
    silences = [each for each in shown if isinstance(each, Silence)]
    assert len(silences) == 60 * 2 + 1
    assert {(each.who, each.step) for each in silences} == {("worker", step)}
    assert silences[0].since_s == pytest.approx(60, abs=0.1)
    assert silences[0].busy_cores == pytest.approx(1.75)
    assert len([each for each in shown if each is None]) >= 59


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


def test_a_device_with_a_slow_compiler_may_be_silent_for_thirty_programs(watch: Watch) -> None:
    lacks = Lacks(minutes_per_program=4)
    assert silence_borne(Patience(lacks), watch) == 7201
    patience = Patience(lacks)
    patience.heard(Tick(index=0, ns=1))
    assert silence_borne(patience, watch) == 7201


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


class Hanging(Worker):
    """A worker that says nothing more after ``after`` steps."""

    after = 20

    def receive(self, timeout_s: float | None = None) -> Message | None:
        if self.done < self.after:
            return super().receive(timeout_s)
        self.now += 1_000_000_000
        return None


def test_a_worker_that_hangs_in_the_middle_of_the_stream_is_a_failed_run() -> None:
    with pytest.raises(RunFailedError, match="silent for 601 s: the device or its plugin hangs"):
        run(Hanging())


def test_a_worker_that_hangs_while_it_is_audited_leaves_its_stamps() -> None:
    worker = Hanging()
    worker.after = 55
    streamed = run(worker, window=Window(first_fence=3, start=3, stop=53, end=55))
    assert "hangs" in str(streamed.failure)
    assert streamed.timing.stop_ns == 53 * STEP_NS


def telling(told: dict[int, dict[str, float]]) -> Callable[[Message], list[Message]]:
    def tamper(message: Message) -> list[Message]:
        if message.kind != "readings":
            return [message]
        return [message.model_copy(update={"telemetry": told.get(message.steps, {})})]

    return tamper


def test_the_plugins_readings_are_kept_for_every_fence_up_to_stop() -> None:
    window = Window(first_fence=3, start=3, stop=53, end=75)
    told = {steps: {"power_w": float(steps)} for steps in range(100)}
    timing = run(Worker(telling(told)), window=window).timing
    assert timing.telemetry == tuple({"power_w": float(s)} for s in (3, 13, 23, 33, 43, 53))
    assert len(timing.telemetry) == len(timing.fence_steps)


def test_a_fence_without_readings_keeps_its_place_among_those_with() -> None:
    window = Window(first_fence=3, start=3, stop=23, end=24)
    timing = run(Worker(telling({13: {"compilations": 1.0}})), window=window).timing
    assert timing.telemetry == ({}, {"compilations": 1.0}, {})


def test_a_plugin_without_readings_leaves_none() -> None:
    assert run(Worker(telling({}))).timing.telemetry == ()


@pytest.mark.parametrize("every_step", [False, True])
def test_a_judged_step_with_other_gradients_than_were_due_is_refused(*, every_step: bool) -> None:
    def other(message: Message) -> list[Message]:
        if isinstance(message, ShownStep):
            return [message.model_copy(update={"digest": "3" * 64 if every_step else ""})]
        return committing(message) if every_step else [message]

    window = replace(WITH_JUDGED, every_step=every_step)
    with pytest.raises(RunFailedError, match="showed other gradients of step 12 than due"):
        run(Worker(other), window=window, ledger=every_step)
