"""The worker's side of the stream: pauses, fences and what it leaves to be audited."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from llmb import worker
from llmb.config import FP32
from llmb.errors import RunFailedError
from llmb.measure import clock
from llmb.observe import compilations
from llmb.observe.passes import Samples, Sketches, plain_pass
from llmb.observe.weights import FenceSamples
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.records import audited
from llmb.records.audited import LIVE_WEIGHTS, STEP_WEIGHTS, ProbedEvidence, StepsEvidence
from llmb.reference.data import random_tokens
from llmb.reference.train_loop import Step, StepDone
from llmb.wire.messages import AuditRequest, Message, Paused, Proceed, StepOrder
from tests.unit import builders_audit
from tests.unit.builders_audit import END, audit_config, shape_of, small_vocabulary

__all__ = ["small_vocabulary"]  # a fixture


class Backend(CpuBackend):
    """A backend that notes when it was waited for."""

    def __init__(self) -> None:
        self.synchronised = 0

    def synchronize(self) -> None:
        self.synchronised += 1


# -- fences ---------------------------------------------------------------------------------


def fence_of(readings: dict[str, float], loss: float = 2.5) -> Any:
    backend = Backend()

    def telemetry(of: Backend) -> dict[str, float]:
        assert of is backend
        assert backend.synchronised == 1, "the device is idle when it is read"
        return readings

    def read() -> tuple[int, ...]:
        assert backend.synchronised == 1, "what an audited step showed is read of an idle device"
        return (1, 3)

    parameter = torch.nn.Parameter(torch.ones(3))
    done = StepDone(Step(4, 0, fence=True), torch.tensor(loss))
    plugin = SimpleNamespace(telemetry=telemetry)
    stream = SimpleNamespace(starved=2, pause_ns=77, witness=SimpleNamespace(read=read))
    return worker.fence(done, plugin, backend, FenceSamples([parameter], 7), stream)


def test_a_fence_carries_the_plugins_readings_and_torchs_own_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    found = fence_of({"power_w": 690.0})
    assert found.telemetry == {"compilations": 4.0, "power_w": 690.0}
    assert (found.steps, found.loss, found.starved_steps) == (5, 2.5, 2)


def test_a_fence_says_which_steps_were_looked_at_and_what_all_pauses_took() -> None:
    found = fence_of({})
    assert found.audited_steps == (1, 3)
    assert found.pause_ns == 77


def test_a_plugin_that_counts_compilations_itself_knows_better_than_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compilations, "torchs_own", lambda: {"compilations": 4.0})
    assert fence_of({"compilations": 9.0}).telemetry == {"compilations": 9.0}


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_the_run_at_its_fence(loss: float) -> None:
    with pytest.raises(RunFailedError, match=r"the loss is (nan|inf) after 5 steps"):
        fence_of({}, loss)


# -- the stream -----------------------------------------------------------------------------


class Supervisor:
    """The other end: hands out what it was given, and notes what it was asked."""

    def __init__(self, *messages: Message) -> None:
        self.messages, self.asked = deque(messages), list[Message]()

    def send(self, message: Message) -> None:
        self.asked.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        return self.messages.popleft()


class Witness:
    """Notes when it is called."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def next(self) -> None:
        self.calls.append("next")

    def before(self, step: Step, seed: int) -> None:
        self.calls.append((step.index, seed))

    def steps(self) -> tuple[()]:
        return ()


def order(index: int) -> StepOrder:
    return StepOrder(index=index, seed=100 + index, fence=index == 1)


def stream_of(*messages: Message) -> tuple[worker.StepStream, Supervisor, Witness]:
    supervisor, witness = Supervisor(*messages), Witness()
    return worker.StepStream(supervisor, witness), supervisor, witness


LOSS = torch.tensor(1.5)


def test_steps_come_as_they_were_ordered_and_count_when_the_next_is_asked_for() -> None:
    stream, *_ = stream_of(order(0), order(1), order(2))
    steps = iter(stream)
    assert next(steps) == Step(0, 100, fence=False)
    assert stream.done == 0
    assert next(steps) == Step(1, 101, fence=True)
    assert stream.done == 1


def test_every_pause_asks_about_its_own_step_and_goes_on_when_told_to() -> None:
    stream, supervisor, witness = stream_of(Proceed(), Proceed())
    for index in (0, 1):
        assert stream.pause(Step(index, 1, fence=False), LOSS) is False
    assert supervisor.asked == [Paused(index=0), Paused(index=1)]
    assert witness.calls == ["next", "next"]
    assert stream.last is None


def test_a_step_that_is_to_be_looked_at_is_looked_at_in_its_own_pause() -> None:
    stream, _, witness = stream_of(AuditRequest(seed=9, last=False))
    assert stream.pause(Step(4, 1, fence=False), LOSS) is False
    assert witness.calls == ["next", (4, 9)]


def test_the_last_request_ends_the_stream_with_the_step_its_loss_and_a_seed() -> None:
    stream, _, witness = stream_of(AuditRequest(seed=9, last=True))
    step = Step(4, 1, fence=False)
    assert stream.pause(step, LOSS) is True
    assert stream.last == worker.Last(step, LOSS, 9)
    assert witness.calls == ["next"], "its gradients stay where they are"


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
    batches = worker.Batches(config, shape, backend)
    assert batches.latest is None
    first, second = batches.make(5), batches.make(6)
    assert torch.equal(first, random_tokens(5, 2, shape.sequence_length, shape.vocab_size))
    assert not torch.equal(first, second)
    assert batches.latest is second
    assert len(begun) == 2


# -- being audited --------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, small_vocabulary: None) -> builders_audit.Audited:
    return builders_audit.work(tmp_path, precision=FP32)


def read(run: builders_audit.Audited, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.folder / name)


def test_every_file_of_the_audit_is_left_and_announced_and_weights_only_lent(
    run: builders_audit.Audited,
) -> None:
    left = {file.name for file in run.folder.iterdir()}
    assert left == {
        "model.json",
        "weights.json",
        "optimizer.json",
        audited.STEPS,
        audited.STEP_VALUES,
        audited.GRADIENTS,
        audited.PROBED,
    }
    assert {file.name for file in run.scratch.iterdir()} == {LIVE_WEIGHTS, STEP_WEIGHTS}
    assert set(run.honest.digests) == left | {LIVE_WEIGHTS, STEP_WEIGHTS}


def test_the_weights_left_are_those_the_last_gradients_were_computed_with(
    run: builders_audit.Audited,
) -> None:
    weights, shape = read_weights(run, LIVE_WEIGHTS), shape_of(run.config)
    probed = ProbedEvidence.model_validate_json((run.folder / audited.PROBED).read_bytes())
    assert (probed.last_step, probed.token_seed, probed.seed) == (END, 1000 + END, 99)
    ids = random_tokens(probed.token_seed, 2, shape.sequence_length, shape.vocab_size)
    collect = Sketches("live", probed.seed, shape)
    loss = plain_pass(weights.__getitem__, shape, ids, torch.float32, "cpu", collect)
    shown = read(run, audited.GRADIENTS)
    assert shown["live/loss"].tolist() == [torch.tensor(loss).item()]
    for name, value in collect.tensors.items():
        assert torch.equal(shown[name], value), name


def read_weights(run: builders_audit.Audited, name: str) -> dict[str, torch.Tensor]:
    return load_file(run.scratch / name)


def test_the_weights_of_the_audited_step_give_the_gradients_that_were_sampled_in_it(
    run: builders_audit.Audited,
) -> None:
    weights, shape = read_weights(run, STEP_WEIGHTS), shape_of(run.config)
    steps = StepsEvidence.model_validate_json((run.folder / audited.STEPS).read_bytes())
    assert [step.index for step in steps.steps] == [0, 4, 7]
    kept = steps.steps[-1]
    assert [step.weights_kept for step in steps.steps] == [False, False, True]
    seen = read(run, audited.STEP_VALUES)
    sizes = {name: value.numel() for name, value in weights.items()}
    samples = Samples(seen["7/where"].long(), {name: sizes[name] for name in names(run)})
    ids = random_tokens(kept.token_seed, 2, shape.sequence_length, shape.vocab_size)
    plain_pass(weights.__getitem__, shape, ids, torch.float32, "cpu", samples)
    assert torch.equal(samples.values, seen["7/gradient"])


def names(run: builders_audit.Audited) -> list[str]:
    weights = json.loads((run.folder / "weights.json").read_bytes())
    return [parameter["name"] for parameter in weights["pristine"]]


def test_both_weights_differ_by_the_steps_in_between(run: builders_audit.Audited) -> None:
    live, step = (read_weights(run, name) for name in (LIVE_WEIGHTS, STEP_WEIGHTS))
    assert set(live) == set(step)
    moved = {name: float((live[name] - step[name]).abs().max()) for name in live}
    assert all(0 < move <= 5 * 4e-5 for move in moved.values()), moved


def test_a_run_in_which_nothing_was_looked_at_leaves_no_weights_of_a_step(
    tmp_path: Path, small_vocabulary: None
) -> None:
    found = builders_audit.work(tmp_path, audits=())
    assert {file.name for file in found.scratch.iterdir()} == {LIVE_WEIGHTS}
    steps = StepsEvidence.model_validate_json((found.folder / audited.STEPS).read_bytes())
    assert steps.steps == ()


def test_a_model_whose_parameters_were_not_all_found_is_not_probed_and_the_reason_told(
    tmp_path: Path, small_vocabulary: None
) -> None:
    class Renamed(nn.Module):
        """The final norm, its gain under another name and in another object."""

        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.gain, self.eps = nn.Parameter(norm.weight.detach().clone()), norm.eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.rms_norm(x, x.shape[-1:], self.gain, self.eps)

    def post_process(model: nn.Module) -> nn.Module:
        model.model.norm = Renamed(model.model.norm)
        return model

    found = builders_audit.work(tmp_path, post_process=post_process)
    probed = ProbedEvidence.model_validate_json((found.folder / audited.PROBED).read_bytes())
    assert probed.passes == ("live",)
    assert probed.failure == "1 parameters were not found: model.norm.weight, ..."
