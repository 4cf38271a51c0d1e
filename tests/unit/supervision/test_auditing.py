"""Calibrator and verifier are asked for what the worker showed; either may fail, and it is said."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmb import clock, workloads
from llmb.config import FP32, AuditMode, Frozen, Mode, Precision, RunConfig
from llmb.errors import NotEnoughMemoryError, RunFailedError
from llmb.measure import host
from llmb.records import audited, evidence
from llmb.records.arrays import file_of, floats
from llmb.records.audited import AuditedStep, ProbedEvidence, StepsEvidence
from llmb.records.canonical import pretty_bytes
from llmb.records.draws import Draws
from llmb.records.evidence import Library, NamespaceEvidence, ParameterDigest, WeightsEvidence
from llmb.records.lacks import Lacks
from llmb.records.run_record import RepeatTiming, Stop
from llmb.supervision import auditing
from llmb.supervision.auditing import Examined, Examiner, Folders
from llmb.supervision.negotiation import Negotiated, for_children
from llmb.supervision.silence import Silence
from llmb.supervision.stream import AuditedRequest, Streamed
from llmb.wire.messages import (
    Done,
    EvidenceFile,
    HonestOrder,
    KeepWeights,
    KeptStep,
    Message,
    Paused,
    Phase,
    Proceed,
    Ready,
    RecomputeOrder,
    ReferenceOrder,
    Terms,
    Tick,
    Unmade,
)
from llmb.workloads.arithmetic import parameter_count
from tests.unit.builders_runtime import TINY, offer, run_config, timing

CONFIG = run_config(shape_overrides=TINY)
STEP = AuditedStep(
    index=7,
    token_seed=1007,
    seed=57,
    weights_kept=True,
    steps_before=7.0,
    foreach=None,
    fused=True,
    capturable=False,
    segments=(),
)
PROBED = ProbedEvidence(
    seed=99, last_step=12, token_seed=1012, passes=("live", "branches", "head"), missing=()
)
STEPS = StepsEvidence(steps=(STEP,), pause_ns=1, longest_pause_ns=1)
WEIGHTS = WeightsEvidence(
    pristine=(),
    processed=(
        ParameterDigest(name="w", shape=(1,), dtype="float32", requires_grad=True, sha256="0" * 64),
    ),
)
NAMES = NamespaceEvidence(
    callables=1,
    operators=1,
    replaced=(),
    device_kernels=0,
    libraries=(
        Library(distribution="acme", version="1", sha256=None, modules=("acme", "acme.kernels")),
    ),
)
LEFT: dict[str, Frozen] = {
    audited.PROBED: PROBED,
    audited.STEPS: STEPS,
    evidence.WEIGHTS: WEIGHTS,
    evidence.NAMESPACE: NAMES,
}
#: What the supervisor asked for: just what the worker shows.
LAST = AuditedRequest(seed=99, token_seed=1012, last=True)
WEIGHTS = dict.fromkeys((audited.LIVE_WEIGHTS, audited.judged_weights(7)), "d" * 64)
STOPPED = timing().model_copy(update={"stops": (Stop(step=7, at_ns=0, ns=1),)})
ASKED = {7: AuditedRequest(seed=57, token_seed=1007, last=False), 12: LAST}


class Watch:
    """A clock that goes on while somebody waits."""

    def __init__(self) -> None:
        self.s = 0.0

    def now_ns(self) -> int:
        return int(self.s * 1e9)


class FakeChild:
    """A process that says what its module's entry in ``script`` says."""

    script: dict[str, list[Message | BaseException | None]]
    started: list[tuple[str, dict[str, str]]]
    ordered: dict[str, Any]
    ended: list[str]
    #: Those that do not start, and why.
    absent: dict[str, Exception]
    happened: list[tuple[str, str]]
    #: How each lets its threads wait.
    waiting: dict[str, str | None]
    watch: Watch
    pid = 4711

    def __init__(self, module: str, environment: dict[str, str], log: Any) -> None:
        log.write(b"a child was here\n")
        self.module = module
        self.started.append((module, dict(environment)))
        self.happened.append(("started", module))
        self.waiting[module] = os.environ.get("OMP_WAIT_POLICY")
        self.messages = deque(self.script[module])

    def begin(self) -> None:
        self.happened.append(("met", self.module))
        if self.module in self.absent:
            raise self.absent[self.module]

    def end(self) -> None:
        self.happened.append(("ended", self.module))
        self.ended.append(self.module)

    def send(self, message: Message) -> None:
        self.happened.append(("ordered", self.module))
        self.ordered[self.module] = message

    def receive(self, timeout_s: float | None = None) -> Message | None:
        assert timeout_s is not None
        message = self.messages.popleft() if self.messages else None
        if message is None:
            self.watch.s += timeout_s
        if isinstance(message, BaseException):
            raise message
        return message


HONEST = EvidenceFile(name=audited.HONEST, sha256="a" * 64)
REFERENCE = EvidenceFile(name=audited.REFERENCE, sha256="b" * 64)
BY_DEVICE = EvidenceFile(name=audited.DEVICE_REFERENCE, sha256="c" * 64)
HONEST_RUN, REFERENCE_RUN = "llmb.processes.honest_run", "llmb.processes.reference_run"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> type[FakeChild]:
    fake = FakeChild
    fake.script = {
        HONEST_RUN: [HONEST, Done()],
        REFERENCE_RUN: [Phase(name="x"), REFERENCE, Done()],
    }
    fake.started, fake.ordered, fake.ended = [], {}, []
    fake.absent, fake.happened, fake.waiting = {}, [], {}
    fake.watch = Watch()
    monkeypatch.setattr(clock, "now_ns", fake.watch.now_ns)
    monkeypatch.setattr(host, "cpu_s_of", lambda pid: 1.5 * fake.watch.s)
    monkeypatch.setattr(auditing, "Child", fake)
    monkeypatch.setattr(auditing.host, "available_memory_bytes", lambda: 10**12)
    return fake


Examine = Callable[..., Examined]


@pytest.fixture
def examine(tmp_path: Path, child: type[FakeChild]) -> Examine:
    """Examine a worker that left everything, or what ``left`` changes of it."""
    said: list[str] = []
    shown: list[Silence | None] = []

    def call(
        config: RunConfig = CONFIG,
        failure: Any = None,
        asked: Any = None,
        lacks: Lacks = Lacks(),  # noqa: B008 (frozen)
        told: RepeatTiming | None = None,
        more: Mapping[str, str] | None = None,
        scratch: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        **left: Frozen | None,
    ) -> Examined:
        files = {**LEFT, **{name.replace("__", "."): value for name, value in left.items()}}
        for name, value in files.items():
            if value is not None:
                (tmp_path / name).write_bytes(pretty_bytes(value))
        own = {"ACME": "1"} if variables is None else dict(variables)
        terms = Terms(environment=own, warmup_steps=1, facts={}, peak=None)
        negotiated = Negotiated(offer(lacks=lacks), config, terms, (), "")
        streamed = Streamed(
            told or STOPPED,
            None,
            {name: "c" * 64 for name, value in files.items() if value is not None}
            | {**(more or {})},
            WEIGHTS if scratch is None else dict(scratch),
            failure,
            ASKED if asked is None else asked,
            token_seeds=tuple(range(1000, 1013)),
        )
        folders = Folders(tmp_path, tmp_path / "scratch")
        log = tempfile.TemporaryFile
        examiner = Examiner(negotiated, config, folders, log, said.append, shown.append)
        return examiner.examine(streamed)

    call.said, call.shown = said, shown
    return call


@pytest.mark.parametrize("of", ["seed", "token_seed"])
def test_steps_tokens_and_places_that_nobody_asked_for_are_not_looked_at(
    examine: Examine, child: type[FakeChild], of: str
) -> None:
    for index, one in ASKED.items():
        found = examine(asked={**ASKED, index: replace(one, **{of: 999})})
        assert found.evidence == {}
        assert "other steps" in found.failures[0]
    assert examine(asked={**ASKED, 99: ASKED[PROBED.last_step]}).evidence == {}
    assert child.started == []


def test_other_weights_than_those_of_the_judged_steps_are_not_looked_at(
    examine: Examine, child: type[FakeChild]
) -> None:
    first = STEP.model_copy(update={"index": 3, "seed": 53, "token_seed": 1003})
    asked = {**ASKED, 3: AuditedRequest(seed=53, token_seed=1003, last=False)}
    for kept in ((True, False), (True, True), (False, False)):
        pairs = zip((first, STEP), kept, strict=True)
        steps = tuple(step.model_copy(update={"weights_kept": is_kept}) for step, is_kept in pairs)
        found = examine(asked=asked, steps__json=STEPS.model_copy(update={"steps": steps}))
        assert found.evidence == {}
        assert "kept other weights" in found.failures[0]
    assert child.started == []


def test_calibrator_and_verifier_are_asked_one_after_the_other_and_what_they_left_is_known(
    examine: Examine, child: type[FakeChild]
) -> None:
    found = examine()
    assert found == Examined({audited.HONEST: "a" * 64, audited.REFERENCE: "b" * 64}, ())
    assert {module for module, _ in child.started} == {HONEST_RUN, REFERENCE_RUN}
    assert child.ended == [HONEST_RUN, REFERENCE_RUN]
    assert examine.said == [
        "computing an honest run on the device",
        "computing the reference",
        "computing the reference: x",
    ]


def test_the_verifier_is_met_before_the_calibrator_loads_a_plugin_and_ordered_once_it_has_gone(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine()
    happened = child.happened
    assert happened.index(("started", REFERENCE_RUN)) < happened.index(("ordered", HONEST_RUN))
    assert happened.index(("met", REFERENCE_RUN)) < happened.index(("ordered", HONEST_RUN))
    assert happened.index(("ended", HONEST_RUN)) < happened.index(("ordered", REFERENCE_RUN))


@pytest.mark.parametrize("module", [HONEST_RUN, REFERENCE_RUN])
def test_one_that_does_not_start_leaves_the_other_to_work(
    examine: Examine, child: type[FakeChild], module: str
) -> None:
    child.absent[module] = RunFailedError("it did not start")
    found = examine()
    what = "an honest run on the device" if module == HONEST_RUN else "the reference"
    assert found.failures == (f"{what} failed: it did not start",)
    assert set(found.evidence) == {audited.REFERENCE if module == HONEST_RUN else audited.HONEST}
    assert module not in child.ordered
    assert sorted(child.ended) == [HONEST_RUN, REFERENCE_RUN]


@pytest.mark.parametrize("already", [None, "active"])
def test_their_threads_sleep_while_they_wait_unless_the_user_says_otherwise(
    examine: Examine,
    child: type[FakeChild],
    monkeypatch: pytest.MonkeyPatch,
    already: str | None,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if already is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", already)
    examine()
    assert set(child.waiting.values()) == {already or "passive"}
    assert os.environ.get("OMP_WAIT_POLICY") == already, "no worker inherits it"


def test_an_interrupted_examination_ends_both(examine: Examine, child: type[FakeChild]) -> None:
    child.script[HONEST_RUN] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        examine()
    assert sorted(child.ended) == [HONEST_RUN, REFERENCE_RUN]


def test_the_vendors_variables_are_the_calibrators_and_the_verifier_has_none(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine()
    assert dict(child.started) == {HONEST_RUN: {"ACME": "1"}, REFERENCE_RUN: {}}


def test_the_instructions_that_a_plugin_takes_are_the_verifiers_too(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine(variables={"ACME": "1", "ATEN_CPU_CAPABILITY": "default"})
    assert dict(child.started)[REFERENCE_RUN] == {"ATEN_CPU_CAPABILITY": "default"}


def test_both_make_the_workers_passes_again_with_its_tokens_and_weights(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine()
    for order in child.ordered.values():
        assert order.passes == ("live", "branches", "head", "step-7")
        assert order.token_seeds == {"live": 1012, "step-7": 1007}
        assert (order.seed, order.judged, order.every_step) == (99, (7,), False)


def test_both_are_told_where_the_workers_files_are_and_what_they_must_hold(
    examine: Examine, child: type[FakeChild], tmp_path: Path
) -> None:
    examine()
    for order in child.ordered.values():
        assert order.evidence_folder == str(tmp_path)
        assert order.scratch_folder == str(tmp_path / "scratch")
        assert order.digests == {
            **dict.fromkeys(LEFT, "c" * 64),
            **WEIGHTS,
        }


def test_the_calibrator_is_ordered_an_honest_run_and_the_verifier_the_reference(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine()
    assert isinstance(child.ordered[HONEST_RUN], HonestOrder)
    assert isinstance(child.ordered[REFERENCE_RUN], ReferenceOrder)
    assert child.ordered[REFERENCE_RUN].stored_dtypes == {"w": "float32"}
    assert child.ordered[HONEST_RUN].library_modules == ("acme", "acme.kernels")


def test_without_the_workers_weights_no_pass_is_made_again(
    examine: Examine, child: type[FakeChild]
) -> None:
    examine(scratch={})
    for order in child.ordered.values():
        assert order.passes == ()
        assert order.judged == ()


def test_neither_is_told_the_runs_own_seed(examine: Examine, child: type[FakeChild]) -> None:
    examine(run_config(shape_overrides=TINY, seed=2**40 + 7))
    for order in child.ordered.values():
        assert order.config == for_children(run_config(shape_overrides=TINY, seed=2**40 + 7))
        assert str(2**40 + 7) not in order.model_dump_json()


@pytest.mark.parametrize(("mode", "borders"), [(AuditMode.FULL, True), (AuditMode.QUICK, False)])
def test_borders_of_narrower_formats_are_measured_in_a_full_audit_only(
    examine: Examine, child: type[FakeChild], mode: AuditMode, borders: bool
) -> None:
    examine(CONFIG.model_copy(update={"audit": mode}))
    assert child.ordered[HONEST_RUN].borders is borders


def test_where_no_step_was_looked_at_none_is_made_again(
    examine: Examine, child: type[FakeChild]
) -> None:
    nothing = STEPS.model_copy(update={"steps": ()})
    examine(steps__json=nothing, asked={12: LAST}, told=timing())
    for order in child.ordered.values():
        assert (order.judged, order.passes) == ((), ("live", "branches", "head"))
        assert order.token_seeds == {"live": 1012}


@pytest.mark.parametrize(
    ("device", "overrides", "batch_size", "heavy"),
    [
        ("cpu", {}, 64, False),
        ("warp:0", {}, 64, True),
        ("warp:0", {}, 1, False),
        ("warp:0", TINY, 64, False),
    ],
)
def test_a_real_batch_that_is_too_much_for_the_host_is_left_to_the_device(
    examine: Examine,
    child: type[FakeChild],
    device: str,
    overrides: dict[str, int],
    batch_size: int,
    heavy: bool,
) -> None:
    child.script[HONEST_RUN].insert(0, BY_DEVICE)
    examine(run_config(device=device, shape_overrides=overrides, batch_size=batch_size))
    real, probes = ("live", "step-7"), ("branches", "head")
    assert child.ordered[HONEST_RUN].reference_passes == (real if heavy else ())
    assert set(child.ordered[REFERENCE_RUN].passes) == {*probes, *(() if heavy else real)}
    assert set(child.ordered[HONEST_RUN].passes) == {*probes, *real}


def test_on_a_device_both_work_at_the_same_time_and_the_calibrator_ends_with_its_task(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[REFERENCE_RUN] = [*[None] * 8, Phase(name="x"), *[None] * 8, REFERENCE, Done()]
    found = examine(run_config(device="warp:0"))
    assert found == Examined({audited.HONEST: "a" * 64, audited.REFERENCE: "b" * 64}, ())
    happened = child.happened
    assert happened.index(("ordered", REFERENCE_RUN)) < happened.index(("ended", HONEST_RUN))
    assert max(happened.index(("met", one)) for one in (HONEST_RUN, REFERENCE_RUN)) < (
        happened.index(("ordered", HONEST_RUN))
    )
    assert child.ordered[REFERENCE_RUN].shared
    assert child.ended == [HONEST_RUN, REFERENCE_RUN]


@pytest.mark.parametrize(
    ("device", "short_by", "shared"), [("warp:0", 0, True), ("warp:0", 1, False), ("cpu", 0, False)]
)
def test_both_work_at_the_same_time_where_the_host_has_16_bytes_a_parameter_and_a_device_beside(
    examine: Examine,
    child: type[FakeChild],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    short_by: int,
    shared: bool,
) -> None:
    parameters = parameter_count(workloads.of(CONFIG).shape)
    room = 16 * parameters - short_by
    monkeypatch.setattr(auditing.host, "available_memory_bytes", lambda: room)
    examine(run_config(device=device, shape_overrides=TINY))
    assert child.ordered[REFERENCE_RUN].shared == shared
    happened = child.happened
    calibrator_is_gone = happened.index(("ended", HONEST_RUN))
    assert (happened.index(("ordered", REFERENCE_RUN)) < calibrator_is_gone) == shared


def test_the_longest_silence_of_either_is_shown_while_both_work(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[HONEST_RUN] = [*[None] * 8 * 70, Done()]
    examine(run_config(device="warp:0"))
    assert {silence.who for silence in examine.shown if silence is not None} == {"honest run"}


def test_one_that_fails_beside_the_other_leaves_it_to_its_task(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[HONEST_RUN] = [RunFailedError("killed")]
    found = examine(run_config(device="warp:0"))
    assert found.failures == ("an honest run on the device failed: killed",)
    assert found.evidence == {audited.REFERENCE: "b" * 64}


def test_without_float64_the_reference_of_a_real_batch_is_the_hosts(
    examine: Examine, child: type[FakeChild]
) -> None:
    config = run_config(device="warp:0", batch_size=64, precision=FP32)
    found = examine(config, lacks=Lacks(float64=True))
    assert child.ordered[HONEST_RUN].reference_passes == ()
    assert set(child.ordered[REFERENCE_RUN].passes) == {"branches", "head", "live", "step-7"}
    assert found.failures == ()


def test_what_the_device_could_not_make_is_said_and_the_host_makes_the_reference(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[REFERENCE_RUN] *= 2  # asked for the probes first, then for everything
    reason = "TypeError: warp has no float64"
    unmade = Unmade(what="the reference on the device", reason=reason)
    child.script[HONEST_RUN].insert(1, unmade)
    found = examine(run_config(device="warp:0", batch_size=64))
    assert found.failures == (f"the reference on the device failed: {reason}",)
    assert set(found.evidence) == {audited.HONEST, audited.REFERENCE}
    assert set(child.ordered[REFERENCE_RUN].passes) == {"branches", "head", "live", "step-7"}
    assert not child.ordered[REFERENCE_RUN].shared, "the calibrator has gone by then"
    assert child.happened.count(("ordered", REFERENCE_RUN)) == 2


def test_a_verifier_that_failed_is_not_asked_again_for_what_the_device_could_not_make(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[REFERENCE_RUN] = [RunFailedError("killed")]
    found = examine(run_config(device="warp:0", batch_size=64))
    assert found.failures == ("the reference failed: killed",)
    assert child.happened.count(("ordered", REFERENCE_RUN)) == 1


@pytest.mark.parametrize(
    "error", [RunFailedError("it was altered"), NotEnoughMemoryError("out of memory")]
)
@pytest.mark.parametrize("module", [HONEST_RUN, REFERENCE_RUN])
def test_one_that_fails_is_said_and_does_not_keep_the_other_from_looking(
    examine: Examine, child: type[FakeChild], module: str, error: Exception
) -> None:
    child.script[module] = [error]
    found = examine()
    assert len(child.started) == len(child.ended) == 2
    (failure,) = found.failures
    what = "an honest run on the device" if module == HONEST_RUN else "the reference"
    assert failure == f"{what} failed: {error}"
    assert set(found.evidence) == {audited.REFERENCE if module == HONEST_RUN else audited.HONEST}


def test_what_one_that_failed_had_announced_does_not_count(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[HONEST_RUN] = [HONEST, RunFailedError("killed")]
    assert set(examine().evidence) == {audited.REFERENCE}


def test_one_that_says_nothing_for_an_hour_is_taken_to_hang_and_not_before(
    examine: Examine, child: type[FakeChild]
) -> None:
    for quarters, hangs in ((4 * 3599, False), (4 * 3601, True)):
        child.script[REFERENCE_RUN] = [*[None] * quarters, REFERENCE, Done()]
        assert bool(examine().failures) == hangs


def test_the_hour_begins_again_with_each_message(examine: Examine, child: type[FakeChild]) -> None:
    quiet = [None] * (4 * 3000)
    child.script[REFERENCE_RUN] = [*quiet, Phase(name="x"), *quiet, REFERENCE, *quiet, Done()]
    assert examine().failures == ()


def test_from_the_second_minute_of_a_silence_on_it_is_shown_what_the_process_does(
    examine: Examine, child: type[FakeChild]
) -> None:
    child.script[HONEST_RUN] = [*[None] * 4 * 50, Phase(name="live"), *[None] * 4 * 61, Done()]
    examine(config=CONFIG.model_copy(update={"device": "cuda:0"}))
    assert len(examine.shown) == 4 * (50 + 61)
    silences = [silence for silence in examine.shown if silence is not None]
    assert silences[0] == Silence("honest run", 60.0, pytest.approx(1.5), on_cpu=False)
    assert len(silences) == 5


@pytest.mark.parametrize(("message", "said"), [(None, "said nothing"), (Ready(), "said 'ready'")])
def test_silence_and_words_out_of_turn_are_failures(
    examine: Examine, child: type[FakeChild], message: Message | None, said: str
) -> None:
    child.script[REFERENCE_RUN] = [message]
    (failure,) = examine().failures
    assert f"llmb.processes.reference_run {said} while it worked" in failure


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (HONEST_RUN, audited.REFERENCE),
        (HONEST_RUN, audited.PRISTINE),
        (HONEST_RUN, audited.GRADIENTS),
        (REFERENCE_RUN, audited.HONEST),
        (REFERENCE_RUN, evidence.WEIGHTS),
    ],
)
def test_nobody_writes_in_another_processs_name(
    examine: Examine, child: type[FakeChild], module: str, name: str
) -> None:
    child.script[module] = [EvidenceFile(name=name, sha256="e" * 64), Done()]
    found = examine()
    assert found.evidence.get(name) != "e" * 64
    (failure,) = found.failures
    assert f"{module} said 'evidence' while it worked" in failure


def test_a_worker_that_died_while_being_audited_is_not_examined(
    examine: Examine, child: type[FakeChild]
) -> None:
    found = examine(failure=RunFailedError("llmb.processes.worker was killed by SIGKILL"))
    assert found.evidence == {}
    assert found.failures == (
        "the worker died while being audited: llmb.processes.worker was killed by SIGKILL",
    )
    assert child.started == []


@pytest.mark.parametrize("name", LEFT)
def test_a_worker_that_left_something_out_is_not_examined_and_the_file_named(
    examine: Examine, child: type[FakeChild], name: str
) -> None:
    found = examine(**{name.replace(".", "__"): None})
    assert found == Examined({}, (f"the worker left no {name}",))
    assert child.started == []


def test_a_file_that_cannot_be_read_is_named(
    examine: Examine, child: type[FakeChild], tmp_path: Path
) -> None:
    found = examine(probed__json=STEPS)
    (failure,) = found.failures
    assert failure.startswith("probed.json cannot be read")
    assert child.started == []


# -- what a worker says it was asked --------------------------------------------------------


def steps(**changes: Any) -> StepsEvidence:
    return STEPS.model_copy(update={"steps": (STEP.model_copy(update=changes),)})


@pytest.mark.parametrize(
    "left",
    [
        {"probed__json": PROBED.model_copy(update={"seed": 1})},
        {"probed__json": PROBED.model_copy(update={"token_seed": 1})},
        {"probed__json": PROBED.model_copy(update={"last_step": 13})},
        {"steps__json": steps(seed=1)},
        {"steps__json": steps(token_seed=1)},
        {"steps__json": steps(index=8)},
        {"steps__json": STEPS.model_copy(update={"steps": ()})},
        {"steps__json": STEPS.model_copy(update={"steps": (STEP, steps(index=8).steps[0])})},
    ],
    ids=[
        "signs",
        "tokens of the last step",
        "another last step",
        "places",
        "tokens of a step",
        "another step",
        "no step",
        "one step more",
    ],
)
def test_a_worker_that_shows_other_than_it_was_asked_for_is_not_examined(
    examine: Examine, child: type[FakeChild], left: dict[str, Frozen]
) -> None:
    found = examine(**left)
    assert found == Examined({}, ("the worker shows other steps than those it was asked for",))
    assert child.started == []


@pytest.fixture
def of_calls(tmp_path: Path) -> tuple[Examiner, Streamed]:
    """Return an examiner of mode forward, and a worker that has committed to five calls."""
    config = CONFIG.model_copy(update={"mode": Mode.FORWARD})
    terms = Terms(environment={}, warmup_steps=1, facts={}, peak=None)
    negotiated, folders = Negotiated(offer(), config, terms, (), ""), Folders(tmp_path, tmp_path)
    show: Any = None
    examiner = Examiner(negotiated, config, folders, tempfile.TemporaryFile, show, show)
    told = timing().model_copy(update={"nonce": "5" * 32, "commitments": ("0" * 64,) * 5})
    left = {audited.LEDGER: "c" * 64, audited.LEDGER_VALUES: "c" * 64}
    return examiner, Streamed(told, None, left, {}, token_seeds=(10, 11, 12, 13, 14, 15))


def test_calls_are_ordered_as_they_were_drawn_each_with_its_tokens_and_places(
    of_calls: tuple[Examiner, Streamed],
) -> None:
    examiner, streamed = of_calls
    found = examiner._calls(streamed)
    drawn = Draws("5" * 32, workloads.of(CONFIG).recipe.optimizer, ledger=True)
    assert found is not None
    assert tuple(call.index for call in found.calls) == drawn.calls_compared(5)
    for call in found.calls:
        assert (call.token_seed, call.places) == (10 + call.index, drawn.places(call.index))


def test_calls_of_a_worker_that_left_no_ledger_are_not_made_again(
    of_calls: tuple[Examiner, Streamed],
) -> None:
    examiner, streamed = of_calls
    assert examiner._calls(replace(streamed, evidence={})) is None


# -- replayed steps that are computed without the plugin ------------------------------------------

NONCE = "5" * 32
DRAWN = Draws(NONCE, workloads.of(CONFIG).recipe.optimizer, ledger=True)
RECOMPUTED = DRAWN.recomputed(13)
COMMITTED = {
    "config": CONFIG.model_copy(update={"device": "cuda:0"}),
    "told": timing().model_copy(update={"nonce": NONCE, "commitments": ("0" * 64,) * 13}),
    "more": {audited.LEDGER: "c" * 64, audited.LEDGER_VALUES: "c" * 64},
    "steps__json": STEPS.model_copy(
        update={"steps": (STEP.model_copy(update={"weights_kept": False}),)}
    ),
}
REPLAYED = EvidenceFile(name=audited.REPLAYED, sha256="e" * 64)
RIGHT = EvidenceFile(name=audited.RECOMPUTED, sha256="f" * 64)


def replaying() -> list[Message | BaseException | None]:
    """Return what an honest run says that replays 13 steps."""
    said: list[Message | BaseException | None] = [HONEST]
    for step in range(13):
        said.append(Paused(index=step, commitment=f"{step:064x}"))
        if step in RECOMPUTED:
            name = audited.replayed_weights(step)
            said.append(EvidenceFile(name=name, sha256=f"{step:064d}", scratch=True))
    return [*said, REPLAYED, Done()]


@pytest.fixture
def replays(child: type[FakeChild], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Let the honest run replay steps; return what each process is sent."""
    child.script[HONEST_RUN] = replaying()
    child.script[REFERENCE_RUN] = [REFERENCE, Done(), RIGHT, Done()]
    sent: list[tuple[str, Any]] = []
    send = child.send

    def noted(self: FakeChild, message: Message) -> None:
        sent.append((self.module, message))
        send(self, message)

    monkeypatch.setattr(child, "send", noted)
    return sent


def test_an_honest_run_keeps_the_weights_of_the_steps_that_were_drawn_and_of_no_other(
    examine: Examine, replays: list[tuple[str, Any]]
) -> None:
    examine(**COMMITTED)
    told = [message for module, message in replays if module == HONEST_RUN][1:]
    assert len(told) == 13
    assert all(isinstance(told[n], KeepWeights if n in RECOMPUTED else Proceed) for n in range(13))


def test_steps_that_no_process_repeats_exactly_are_repeated_and_not_computed_anew(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    said = [m for m in replaying() if not (isinstance(m, EvidenceFile) and m.scratch)]
    child.script[HONEST_RUN] = said
    narrow = Precision(name="NVFP4", bits=4, dtype="bfloat16")
    config = COMMITTED["config"].model_copy(update={"precision": narrow})
    found = examine(**{**COMMITTED, "config": config})
    assert found.failures == ()
    assert audited.REPLAYED in found.evidence
    assert not [message for _, message in replays if isinstance(message, RecomputeOrder)]


def test_the_reference_is_asked_for_them_once_the_honest_run_has_gone(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    found = examine(**COMMITTED)
    order = replays[-1][1]
    assert isinstance(order, RecomputeOrder)
    assert order.device == "cpu", "the host suffices"
    assert order.steps == tuple(
        KeptStep(
            index=step,
            token_seed=1000 + step,
            commitment=f"{step:064x}",
            weights=audited.replayed_weights(step),
            sha256=f"{step:064d}",
        )
        for step in RECOMPUTED
    )
    assert order.digests[audited.REPLAYED] == "e" * 64
    ended = child.happened.index(("ended", HONEST_RUN))
    assert child.happened[ended:].count(("ordered", REFERENCE_RUN)) == 1
    assert found.evidence[audited.RECOMPUTED] == "f" * 64
    assert found.failures == ()


def test_judged_steps_too_heavy_for_the_host_are_computed_without_the_plugin_too(
    examine: Examine, replays: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "reference_on_device", lambda config, lacks: True)
    stops = tuple(Stop(step=step, at_ns=0, ns=1) for step in (4, 9))
    files = {audited.judged_weights(stop.step): f"{stop.step:064d}" for stop in stops}
    told = COMMITTED["told"].model_copy(update={"stops": stops})
    examine(**{**COMMITTED, "told": told}, scratch={**WEIGHTS, **files})
    orders = {type(order): order for _, order in replays}
    assert orders[RecomputeOrder].judged == tuple(
        KeptStep(
            index=step,
            token_seed=1000 + step,
            commitment="0" * 64,
            weights=audited.judged_weights(step),
            sha256=f"{step:064d}",
        )
        for step in (4, 9)
    )
    assert {"step-4", "step-9"} <= {*orders[HonestOrder].reference_passes}


def test_where_they_cannot_be_computed_the_reference_stays_and_the_reason_is_told(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    child.script[REFERENCE_RUN] = [REFERENCE, Done(), RunFailedError("weights were altered")]
    found = examine(**COMMITTED)
    assert found.evidence == {
        audited.HONEST: HONEST.sha256,
        audited.REPLAYED: REPLAYED.sha256,
        audited.REFERENCE: REFERENCE.sha256,
    }
    assert found.failures == ("the reference failed: weights were altered",)


def test_a_replay_that_finds_too_little_memory_begins_anew(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    child.script[HONEST_RUN].insert(1, Paused(index=0, commitment="9" * 64))
    assert examine(**COMMITTED).failures == ()
    assert isinstance(replays[-1][1], RecomputeOrder)


@pytest.mark.parametrize(
    "said",
    [
        Paused(index=0, commitment="9" * 64),
        Paused(index=RECOMPUTED[0], commitment="9" * 64),
        EvidenceFile(name=audited.replayed_weights(RECOMPUTED[0]), sha256="9" * 64, scratch=True),
    ],
    ids=["begins anew", "pauses twice", "other weights"],
)
def test_a_replay_that_goes_back_once_it_knows_a_step_that_is_checked_is_refused(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]], said: Message
) -> None:
    script = replaying()
    at = script.index(Paused(index=RECOMPUTED[0] + 1, commitment=f"{RECOMPUTED[0] + 1:064x}"))
    child.script[HONEST_RUN] = [*script[: at + 1], said, *script[at + 1 :]]
    found = examine(**COMMITTED)
    assert audited.HONEST not in found.evidence
    assert found.failures[0].startswith("an honest run on the device failed")


def test_weights_of_a_step_that_has_not_paused_are_refused(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    file = EvidenceFile(name=audited.replayed_weights(RECOMPUTED[1]), sha256="9" * 64, scratch=True)
    child.script[HONEST_RUN] = [HONEST, file, Done()]
    assert examine(**COMMITTED).failures[0].startswith("an honest run on the device failed")


@pytest.mark.parametrize("kept", [(), RECOMPUTED[:1]], ids=["none", "one of two"])
def test_an_honest_run_that_leaves_weights_out_has_no_step_computed(
    examine: Examine, replays: list[tuple[str, Any]], child: type[FakeChild], kept: tuple[int, ...]
) -> None:
    names = {audited.replayed_weights(step) for step in RECOMPUTED if step not in kept}
    script = [m for m in replaying() if not (isinstance(m, EvidenceFile) and m.name in names)]
    child.script[HONEST_RUN] = script
    assert audited.RECOMPUTED not in examine(**COMMITTED).evidence
    assert not [message for _, message in replays if isinstance(message, RecomputeOrder)]


def test_an_honest_run_that_stops_pausing_has_no_step_computed(
    examine: Examine, replays: list[tuple[str, Any]], child: type[FakeChild]
) -> None:
    child.script[HONEST_RUN] = [HONEST, Paused(index=0, commitment="0" * 64), REPLAYED, Done()]
    assert audited.RECOMPUTED not in examine(**COMMITTED).evidence


def test_where_no_step_was_replayed_none_is_computed(
    examine: Examine, child: type[FakeChild], replays: list[tuple[str, Any]]
) -> None:
    child.script[HONEST_RUN] = [HONEST, Done()]
    examine(**COMMITTED)
    assert not [message for _, message in replays if isinstance(message, RecomputeOrder)]


def test_weights_that_a_worker_kept_though_every_step_is_compared_are_refused(
    examine: Examine, child: type[FakeChild]
) -> None:
    found = examine(**{**COMMITTED, "steps__json": STEPS})
    assert "kept other weights" in found.failures[0]
    assert child.started == []


# -- gradients of judged steps --------------------------------------------------------------------


@pytest.mark.parametrize("shown", ["same", "changed", "missing", "no file"])
def test_gradients_that_were_changed_after_a_judged_step_are_not_looked_at(
    of_calls: tuple[Examiner, Streamed], tmp_path: Path, shown: str
) -> None:
    examiner, streamed = of_calls
    values = floats((3,), [1.0, 2.0, 3.0])
    streamed = replace(streamed, shown={7: hashlib.sha256(values.data).hexdigest()})
    stored = {"changed": {"7/gradient": floats((3,), [1.0, 2.0, 4.0])}, "missing": {"8/x": values}}
    if shown != "no file":
        found = file_of(stored.get(shown, {"7/gradient": values}))
        (tmp_path / audited.STEP_VALUES).write_bytes(found)
    if shown == "same":
        examiner._check_shown(streamed)
        return
    words = "cannot be read" if shown == "no file" else "step 7 changed after the step"
    with pytest.raises(RunFailedError, match=words):
        examiner._check_shown(streamed)


# -- steps and calls of a CPU ---------------------------------------------------------------------

ON_CPU = {**COMMITTED, "config": CONFIG}


def test_on_a_cpu_the_reference_is_asked_to_repeat_the_steps_and_no_other_process(
    examine: Examine, child: type[FakeChild]
) -> None:
    ticks = [Tick(index=step, ns=0) for step in range(13)]
    child.script[REFERENCE_RUN] = [REFERENCE, *ticks, REPLAYED, Done()]
    found = examine(**ON_CPU)
    assert found.failures == ()
    assert found.evidence[audited.REPLAYED] == REPLAYED.sha256
    honest, reference = child.ordered[HONEST_RUN], child.ordered[REFERENCE_RUN]
    assert isinstance(reference, ReferenceOrder), "nothing is recomputed"
    assert honest.stream is None
    assert reference.stream.token_seeds == tuple(range(1000, 1013))
    assert reference.stream.rates == honest.rates == tuple(map(DRAWN.rate, range(13)))


@pytest.mark.parametrize("said", [REPLAYED, Paused(index=0, commitment="0" * 64)])
def test_on_a_cpu_an_honest_run_that_repeats_steps_is_refused(
    examine: Examine, child: type[FakeChild], said: Message
) -> None:
    child.script[HONEST_RUN] = [HONEST, said, Done()]
    assert examine(**ON_CPU).failures[0].startswith("an honest run on the device failed")


def test_a_repetition_that_fails_leaves_the_reference_and_tells_the_reason(
    examine: Examine, child: type[FakeChild]
) -> None:
    unmade = Unmade(what="the repetition of the steps", reason="RuntimeError: no memory")
    child.script[REFERENCE_RUN] = [REFERENCE, unmade, Done()]
    found = examine(**ON_CPU)
    assert found.failures == ("the repetition of the steps failed: RuntimeError: no memory",)
    assert found.evidence[audited.REFERENCE] == REFERENCE.sha256


def test_the_hour_of_silence_begins_anew_with_each_repeated_step(
    examine: Examine, child: type[FakeChild]
) -> None:
    waits = [None] * int(2000 / auditing._IDLE_S)
    ticks = [message for step in range(3) for message in (*waits, Tick(index=step, ns=0))]
    child.script[REFERENCE_RUN] = [REFERENCE, *ticks, REPLAYED, Done()]
    assert examine(**ON_CPU).failures == ()
