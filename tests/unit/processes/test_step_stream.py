"""The worker's side of the stream: steps in order, one question in each pause, fences that wait."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from llmb import clock
from llmb.config import Parallelism
from llmb.errors import RunFailedError
from llmb.observe import compilations
from llmb.observe.weights import FenceSamples
from llmb.plugin.backend import DeviceMemory
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.processes import step_stream
from llmb.records.run_record import COMPILATIONS_COUNTED
from llmb.reference.data import random_tokens
from llmb.reference.train_loop import Step, StepDone
from llmb.wire.messages import (
    AuditRequest,
    KeepWeights,
    Message,
    Paused,
    Proceed,
    Sampled,
    ShownStep,
    StepDraw,
    StepOrder,
    Stopped,
)
from tests.unit.builders_audit import audit_config, shape_of


class Backend(CpuBackend):
    """A backend that notes when it was waited for."""

    def __init__(self) -> None:
        self.synchronised = 0

    def synchronize(self) -> None:
        self.synchronised += 1


# -- fences ---------------------------------------------------------------------------------


MEMORY = DeviceMemory(total_bytes=3, available_bytes=2, peak_bytes=1)


def fence_of(
    loss: float = 2.5, reads: Callable[[str, Any], Any] = lambda name, value: value
) -> Any:
    backend = Backend()

    def read() -> tuple[int, ...]:
        assert backend.synchronised == 1, "what an audited step showed is read of an idle device"
        return reads("audited steps", (1, 3))

    parameter = torch.nn.Parameter(torch.ones(3))
    done = StepDone(Step(4, 0, fence=True), torch.tensor(loss))
    stream = SimpleNamespace(starved=2, pause_ns=77, sampler=SimpleNamespace(read=read))
    stream.now_ns, stream.cpu_s = clock.now_ns, clock.cpu_s
    samples, told = FenceSamples([parameter], 7), step_stream.FencePayload()
    return step_stream.fence(done, backend, samples, stream, told)


def readings_of(telemetry: dict[str, float]) -> Any:
    plugin: Any = SimpleNamespace(telemetry=lambda backend: telemetry)
    return step_stream.readings(5, plugin, Backend(), step_stream.FencePayload())


def test_readings_are_the_plugins_and_torchs_own_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    found = readings_of({"power_w": 690.0})
    assert found.telemetry == {
        "compilations": 4.0,
        "power_w": 690.0,
        COMPILATIONS_COUNTED: 4.0,
    }
    assert found.steps == 5


def test_a_plugin_cannot_change_llmbs_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = {"compilations": 9.0, COMPILATIONS_COUNTED: 9.0}
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    assert readings_of(forged).telemetry == {"compilations": 9.0, COMPILATIONS_COUNTED: 4.0}
    monkeypatch.setattr(compilations, "torchs_own", dict)
    assert readings_of(forged).telemetry == {"compilations": 9.0}


def test_a_fence_carries_the_loss_and_what_the_stream_counted() -> None:
    found = fence_of()
    assert (found.steps, found.loss, found.starved_steps) == (5, 2.5, 2)


def test_a_fence_says_which_steps_were_looked_at_and_what_all_pauses_took() -> None:
    found = fence_of()
    assert found.audited_steps == (1, 3)
    assert found.pause_ns == 77


def test_a_fence_is_stamped_after_results_and_before_the_plugin_is_asked_for_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(clock, "now_ns", lambda: next(ticks))
    at: dict[str, int] = {}

    def read(name: str, value: Any) -> Any:
        at[name] = clock.now_ns()
        return value

    monkeypatch.setattr(Backend, "memory", lambda self: read("memory", MEMORY))
    monkeypatch.setattr(Backend, "energy", lambda self: read("energy", None))
    found = fence_of(reads=read)
    assert at.keys() == {"audited steps"}, "no reading of the backend's lies before the stamp"
    assert found.worker_ns > max(at.values()), "rule T1 compares it with the supervisor's stamp"


def test_a_plugin_that_counts_compilations_itself_knows_better_than_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    found = readings_of({"compilations": 9.0}).telemetry
    assert found == {"compilations": 9.0, COMPILATIONS_COUNTED: 4.0}


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_at_its_fence(loss: float) -> None:
    with pytest.raises(RunFailedError, match=r"the loss is (nan|inf) after 5 steps"):
        fence_of(loss)


# -- the stream -----------------------------------------------------------------------------


class Supervisor:
    """The other end: hands out what it was given, and notes what it was asked."""

    def __init__(self, *messages: Message) -> None:
        self.messages, self.asked = deque(messages), list[Message]()

    def send(self, message: Message) -> None:
        self.asked.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        return self.messages.popleft()


GLANCED = "a" * 64


class StepSampler:
    """Notes when it is called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def next(self) -> None:
        self.calls.append("next")

    def glance(self) -> str:
        self.calls.append("glance")
        return GLANCED

    def glanced(self) -> str:
        self.calls.append("glanced")
        return "b" * 64

    def before(self, step: Step, seed: int) -> None:
        self.calls.append((step.index, seed))

    def steps(self) -> tuple[()]:
        return ()


def order(index: int) -> StepOrder:
    return StepOrder(index=index, seed=100 + index, fence=index == 1)


def stream_of(*messages: Message) -> tuple[step_stream.StepStream, Supervisor, StepSampler]:
    supervisor, sampler = Supervisor(*messages), StepSampler()
    return step_stream.StepStream(supervisor, sampler), supervisor, sampler


LOSS = torch.tensor(1.5)


def test_steps_come_as_they_were_ordered_and_count_when_the_next_is_asked_for() -> None:
    stream, *_ = stream_of(order(0), order(1), order(2))
    steps = iter(stream)
    assert next(steps) == Step(0, 100, fence=False)
    assert stream.done == 0
    assert next(steps) == Step(1, 101, fence=True)
    assert stream.done == 1


def test_every_pause_asks_about_its_own_step_and_goes_on_when_told_to() -> None:
    stream, supervisor, sampler = stream_of(Proceed(), Proceed())
    for index in (0, 1):
        assert stream.pause(Step(index, 1, fence=False), LOSS) is False
    assert supervisor.asked == [Paused(index=n, glanced=GLANCED) for n in (0, 1)]
    assert sampler.calls == ["glance", "next", "glance", "next"]
    assert stream.last is None


def test_gradients_are_glanced_at_before_anybody_is_asked() -> None:
    stream, supervisor, sampler = stream_of(Proceed())

    def glance() -> str:
        assert supervisor.asked == []
        sampler.calls.append("glance")
        return GLANCED

    sampler.glance = glance
    stream.pause(Step(0, 1, fence=False), LOSS)
    assert "glance" in sampler.calls


def test_a_step_that_is_to_be_looked_at_is_looked_at_in_its_own_pause() -> None:
    stream, _, sampler = stream_of(AuditRequest(seed=9, last=False))
    assert stream.pause(Step(4, 1, fence=False), LOSS) is False
    assert sampler.calls == ["glance", "next", (4, 9)]


def test_the_last_request_ends_the_stream_with_the_step_its_loss_and_a_seed() -> None:
    stream, _, sampler = stream_of(AuditRequest(seed=9, last=True))
    step = Step(4, 1, fence=False)
    assert stream.pause(step, LOSS) is True
    assert stream.last == step_stream.Last(step, LOSS, 9)
    assert sampler.calls == ["glance", "next"], "its gradients stay where they are"


def test_orders_that_come_before_the_answer_are_kept_for_their_turn() -> None:
    stream, *_ = stream_of(order(0), order(1), order(2), Proceed())
    steps = iter(stream)
    next(steps)
    assert stream.pause(Step(0, 100, fence=False), LOSS) is False
    assert [next(steps).index, next(steps).index] == [1, 2]
    assert stream.starved == 0


def test_a_step_that_had_to_wait_for_its_order_is_counted_but_not_the_first() -> None:
    stream, *_ = stream_of(order(0), order(1), Proceed(), order(2))
    steps = iter(stream)
    next(steps)
    assert stream.starved == 0
    next(steps)
    assert stream.starved == 1
    stream.pause(Step(1, 101, fence=True), LOSS)
    next(steps)
    assert stream.starved == 1, "after a fence the order is late for everybody, and on purpose"


def test_what_pauses_take_is_added_up_and_the_longest_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0, 30, 100, 105, 200, 220])
    monkeypatch.setattr(clock, "now_ns", lambda: next(times))
    stream, *_ = stream_of(Proceed(), AuditRequest(seed=1, last=False), Proceed())
    for index in range(3):
        stream.pause(Step(index, 1, fence=False), LOSS)
    found = stream.evidence()
    assert (found.pause_ns, found.longest_pause_ns) == (55, 30)


# -- batches --------------------------------------------------------------------------------


def test_batches_are_fresh_tokens_of_their_seed_and_the_latest_is_kept() -> None:
    config = audit_config()
    shape = shape_of(config)
    begun: list[int] = []
    backend = SimpleNamespace(step_begin=lambda: begun.append(1))
    batches = step_stream.Batches(config, shape, backend)
    assert batches.latest == ()
    (first,), (second,) = batches.make(5), batches.make(6)
    assert torch.equal(first.ids, random_tokens(5, 2, shape.sequence_length, shape.vocab_size))
    assert not torch.equal(first.ids, second.ids)
    assert batches.latest == [second]
    assert len(begun) == 2


def test_the_seed_of_masks_reaches_the_host_and_a_device_with_a_generator_of_its_own() -> None:
    seeds: list[int] = []
    own: Any = SimpleNamespace(manual_seed=seeds.append)
    step_stream.seed_masks(own, 5)
    drawn = torch.rand(3)
    other: Any = SimpleNamespace()
    step_stream.seed_masks(other, 5)
    assert torch.equal(torch.rand(3), drawn)
    assert seeds == [5]


def test_a_step_that_accumulates_has_the_same_tokens_in_parts() -> None:
    config = audit_config().model_copy(update={"batch_size": 4})
    shape, backend = shape_of(config), SimpleNamespace(step_begin=lambda: None)
    (whole,) = step_stream.Batches(config, shape, backend).make(5)
    parted = config.model_copy(update={"accumulate": 2})
    parts = step_stream.Batches(parted, shape, backend).make(5)
    assert parted.micro_batch_size == 2
    assert [len(part.ids) for part in parts] == [2, 2]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)


# -- batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("replica", [0, 1])
def test_a_replica_has_its_own_part_of_the_whole_batch_in_its_micro_batches(replica: int) -> None:
    mesh = Parallelism(dp_replicate=2)
    config = audit_config().model_copy(
        update={"batch_size": 4, "accumulate": 2, "parallelism": mesh}
    )
    shape = shape_of(config)
    marks: list[str] = []
    backend: Any = SimpleNamespace(step_begin=lambda: marks.append("begin"))
    batches = step_stream.Batches(config, shape, backend, replica)
    made = batches.make(5)
    whole = random_tokens(5, 8, shape.sequence_length, shape.vocab_size)
    assert torch.equal(torch.cat([part.ids for part in made]), whole[4 * replica : 4 * replica + 4])
    assert [len(part.ids) for part in made] == [2, 2]
    assert batches.latest is made
    assert marks == ["begin"]


class Ledger:
    """Notes what is read at which rate."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, float]] = []

    def commitment(self) -> str:
        return "0" * 64 if self.taken else ""

    committed_at_once = commitment

    def take(self, places: int, rate: float) -> None:
        self.taken.append((places, rate))


def test_what_a_step_is_told_is_read_in_its_pause_and_committed_to_in_the_next() -> None:
    draws = [StepDraw(places=5, rate=1e-5), StepDraw(places=6, rate=1e-4)]
    supervisor, ledger = Supervisor(draws[0], Proceed(), draws[1], Proceed()), Ledger()
    stream = step_stream.StepStream(supervisor, StepSampler(), ledger)
    for index in (0, 1):
        stream.pause(Step(index, 1, fence=False), LOSS)
    assert ledger.taken == [(5, 1e-5), (6, 1e-4)]
    row = "0" * 64
    assert supervisor.asked == [
        Paused(index=0, glanced=GLANCED),
        Sampled(index=0, commitment=row),
        Paused(index=1, commitment=row, glanced=GLANCED),
        Sampled(index=1, commitment=row),
    ]


def test_a_step_that_nothing_can_read_ends_the_run() -> None:
    supervisor = Supervisor(StepDraw(places=5, rate=1e-5))
    stream = step_stream.StepStream(supervisor, StepSampler())
    with pytest.raises(RunFailedError, match="nothing can read the gradients of step 4"):
        stream.pause(Step(4, 1, fence=False), LOSS)


def test_an_audited_step_is_read_as_any_other() -> None:
    draw, ledger = StepDraw(places=5, rate=1e-5), Ledger()
    supervisor = Supervisor(draw, AuditRequest(seed=9, last=False))
    stream = step_stream.StepStream(supervisor, StepSampler(), ledger)
    stream.pause(Step(4, 1, fence=False), LOSS)
    assert ledger.taken == [(5, 1e-5)]


def test_the_digest_of_a_judged_step_has_left_before_any_code_of_the_plugin_may_run() -> None:
    draw, ledger = StepDraw(places=5, rate=1e-5), Ledger()
    supervisor = Supervisor(draw, KeepWeights(), Proceed(stopped_ns=7))
    stream, shown = step_stream.StepStream(supervisor, StepSampler(), ledger), "0" * 64
    done: list[object] = []
    finish = partial(done.append, "finish")
    wait = lambda: (finish(), seen())  # noqa: E731
    stream.keeper = step_stream.WeightsKeeper(never, wait, done.append)

    def seen() -> None:
        assert supervisor.asked[1:] == [
            Sampled(index=4, commitment=shown),
            ShownStep(index=4, commitment=shown),
        ]

    stream.pause(Step(4, 1, fence=False), LOSS)
    assert done == ["finish", 4]
    assert supervisor.asked[3:] == [Stopped(index=4)]
    assert stream.stopped_ns == 7


def never(step: Step, seed: int) -> str:
    raise AssertionError("these gradients are in the rows of every step")


@pytest.mark.parametrize("draw", [None, StepDraw(places=5, rate=1e-5)])
def test_where_not_every_step_is_compared_a_judged_step_is_sampled_by_a_seed_of_its_own(
    draw: StepDraw | None,
) -> None:
    orders = (draw,) if draw else ()
    supervisor = Supervisor(*orders, KeepWeights(seed=9), Proceed(stopped_ns=7))
    ledger = Ledger() if draw else None
    stream, done = step_stream.StepStream(supervisor, StepSampler(), ledger), []

    def show(step: Step, seed: int) -> str:
        done.append((step.index, seed, ledger is not None and len(ledger.taken)))
        return "f" * 64

    stream.keeper = step_stream.WeightsKeeper(show, lambda: None, done.append)
    stream.pause(Step(4, 1, fence=False), LOSS)
    assert done == [(4, 9, ledger is not None and 1), 4]
    row, again = "0" * 64 if draw else "", "b" * 64
    shown = ShownStep(index=4, commitment=row, digest="f" * 64, glanced=again)
    assert supervisor.asked[-2:] == [shown, Stopped(index=4)]


def test_everything_is_compared_right_before_the_reading_and_again_after_a_wait() -> None:
    supervisor = Supervisor(StepDraw(places=5, rate=1e-5), KeepWeights(), Proceed(stopped_ns=7))
    stream, done = step_stream.StepStream(supervisor, StepSampler(), Ledger()), list[object]()
    stream.exactness = cast(
        "Any",
        SimpleNamespace(
            see=lambda *_: done.append("seen"),
            compare=lambda step: done.append(f"compare {step}"),
        ),
    )
    stream.keeper = step_stream.WeightsKeeper(never, lambda: done.append("waited"), done.append)
    stream.pause(Step(4, 1, fence=False), LOSS)
    assert done == ["seen", "compare 4", "waited", "compare 4", 4]


@pytest.mark.parametrize("seed", [None, 9])
def test_a_judged_step_that_nobody_can_write_ends_the_run(seed: int | None) -> None:
    supervisor = Supervisor(StepDraw(places=5, rate=1e-5), KeepWeights(seed=seed))
    stream = step_stream.StepStream(supervisor, StepSampler(), Ledger())
    with pytest.raises(RunFailedError, match="nothing can write the weights of step 4"):
        stream.pause(Step(4, 1, fence=False), LOSS)


@pytest.mark.parametrize("collecting", [True, False])
def test_no_garbage_is_collected_between_the_answer_and_the_digest(collecting: bool) -> None:
    class Garbage:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            freed.append(stream.ledger is not None and len(ledger.taken))

    class Littering(Supervisor):
        def receive(self, timeout_s: float | None = None) -> Message | None:
            found = super().receive(timeout_s)
            Garbage()
            _ = [[n] for n in range(1000)]
            return found

    freed: list[object] = []
    supervisor = Littering(StepDraw(places=5, rate=1e-5), KeepWeights(), Proceed())
    ledger, before = Ledger(), (gc.isenabled(), gc.get_threshold())
    stream = step_stream.StepStream(supervisor, StepSampler(), ledger)
    stream.keeper = step_stream.WeightsKeeper(never, lambda: None, lambda step: None)
    try:
        gc.set_threshold(5)
        (gc.enable if collecting else gc.disable)()
        stream.pause(Step(4, 1, fence=False), LOSS)
        assert gc.isenabled() == collecting
    finally:
        gc.set_threshold(*before[1])
        (gc.enable if before[0] else gc.disable)()
    gc.collect()
    assert set(freed) == {1}
