"""A whole audit in this process: a worker's part, then calibrator, verifier and judge, in a second.

The model is tiny and its vocabulary too. What a test changes is what a vendor could change.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from llmb import workloads
from llmb.audit import judgement
from llmb.audit.bench import Facts, sharp_of
from llmb.audit.judgement import Judgement
from llmb.config import BF16, AuditMode, Mode, Parallelism, RunConfig
from llmb.errors import RunFailedError
from llmb.inputs.start import values_of
from llmb.observe.canonical import Canonical
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.step_sampler import StepSampler
from llmb.plugin import ParameterView
from llmb.plugin.builtin.cpu import CpuBackend
from llmb.processes import honest_run, modes, reference_run
from llmb.processes.evidence_writer import EvidenceWriter, Pristine
from llmb.processes.modes.stage import Stage
from llmb.processes.step_stream import StepStream, WeightsKeeper
from llmb.records import audited, draws, evidence
from llmb.records.draws import Draws
from llmb.records.finding import Finding
from llmb.records.run_record import Stop
from llmb.reference import pins
from llmb.reference.models import build
from llmb.reference.shapes import LlamaShape
from llmb.supervision import reduced
from llmb.wire.messages import (
    AuditRequest,
    CallsToReplay,
    CallToReplay,
    Done,
    EvidenceFile,
    HonestOrder,
    KeepWeights,
    KeptStep,
    Message,
    Paused,
    Proceed,
    RecomputeOrder,
    ReferenceOrder,
    Sampled,
    StepDraw,
    StepOrder,
    StreamEnded,
    StreamToReplay,
    WorkOrder,
)
from tests import builders
from tests.unit.builders_runtime import run_config, timing, workload_facts

VOCABULARY = 509
SHAPES = {
    "sequence_length": 24,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WARMUP, TIMED, END = 1, 10, 12
NONCE = "8f" * 16
DRAWN = Draws(NONCE, workloads.WORKLOADS["llama-1.4b"].recipe.optimizer, ledger=True)
#: The judged steps, the same three whether L1 compares every step or not: none is audited, too.
JUDGED = DRAWN.judged(range(WARMUP, WARMUP + TIMED), END + 1)
#: For what needs no run: a fraction of that.
SMALL = LlamaShape(
    vocab_size=61,
    hidden_size=48,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    sequence_length=12,
)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make the fixed workload's vocabulary small, as long as ``patch`` lasts."""
    known = workloads.WORKLOADS["llama-1.4b"]
    small = replace(known, shape=replace(known.shape, vocab_size=VOCABULARY))
    patch.setitem(workloads.WORKLOADS, "llama-1.4b", small)


@pytest.fixture
def small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the fixed workload's vocabulary small; put torch's settings back afterwards."""
    make_small(monkeypatch)
    products, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_float32_matmul_precision(products)
    torch.set_num_threads(threads)


def audit_config(**changes: Any) -> RunConfig:
    """Return a tiny run on the CPU, with ``changes``."""
    values: dict[str, Any] = {
        "precision": BF16,
        "batch_size": 2,
        "warmup_steps": WARMUP,
        "timed_steps": TIMED,
        "shape_overrides": SHAPES,
        "plugin_options": {"keep_memory": False, "threads": 1},
        "audit": AuditMode.FULL,
    }
    return run_config(**{**values, **changes})


def shape_of(config: RunConfig) -> LlamaShape:
    """Return the shape that ``config`` trains."""
    return workloads.find(config.workload, config.shape_overrides).shape


class Line:
    """A channel without a process: what is sent is kept, what is received was put in."""

    def __init__(self, *incoming: Message) -> None:
        self.incoming, self.sent = deque(incoming), list[Message]()

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float | None = None) -> Message | None:
        return self.incoming.popleft() if self.incoming else None

    def expect(self, kind: type, timeout_s: float | None = None) -> Message:
        message = self.receive(timeout_s)
        assert isinstance(message, kind)
        return message

    def announced(self, *, scratch: bool = False) -> dict[str, str]:
        """Return name -> digest of every file that was announced."""
        files = [m for m in self.sent if isinstance(m, EvidenceFile)]
        return {file.name: file.sha256 for file in files if file.scratch is scratch}


class Stream(Line):
    """The supervisor's side of a stream, which answers in the pause of each step."""

    def __init__(
        self,
        audits: tuple[int, ...] = (0, 4, 7),
        end: int = END,
        *,
        ledger: bool = True,
        last_seed: int = 99,
        judged: tuple[int, ...] = (),
        every_step: bool = True,
    ) -> None:
        fences = range(WARMUP - 1, end + 4, 5)
        super().__init__(
            *(StepOrder(index=i, seed=1000 + i, fence=i in fences) for i in range(end + 4))
        )
        self._audits, self._end, self._ledger = audits, end, ledger
        self._last_seed, self._judged, self._every_step = last_seed, judged, every_step

    def send(self, message: Message) -> None:
        super().send(message)
        if isinstance(message, Paused):
            self._begin(message.index)
        if isinstance(message, Sampled):
            self.incoming.appendleft(self._answer(message.index))
        if isinstance(message, EvidenceFile) and message.name.startswith("judged-"):
            self.incoming.appendleft(Proceed(stopped_ns=1))

    def _begin(self, index: int) -> None:
        draw = StepDraw(places=DRAWN.places(index), rate=rate_of(index))
        self.incoming.appendleft(draw if self._ledger else self._answer(index))

    def _answer(self, index: int) -> Message:
        if index == self._end:
            return AuditRequest(seed=self._last_seed, last=True)
        if index in self._judged:
            return KeepWeights(seed=None if self._every_step else 50 + index)
        if index in self._audits:
            return AuditRequest(seed=50 + index, last=False)
        return Proceed()

    def commitments(self) -> tuple[str, ...]:
        """Return what the worker has committed to, step by step."""
        told = [m for m in self.sent if isinstance(m, (Paused, StreamEnded))]
        return tuple(m.commitment for m in told if m.commitment)


class Replayed(Line):
    """The supervisor's side of an honest run, which has the weights of ``steps`` kept."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        super().__init__()
        self.steps, self.commitments = steps, dict[int, str]()

    def send(self, message: Message) -> None:
        super().send(message)
        if isinstance(message, Paused):
            self.commitments[message.index] = message.commitment
            kept = message.index in self.steps
            self.incoming.append(KeepWeights() if kept else Proceed())


def rate_of(index: int) -> float:
    """Return the learning rate of a step."""
    return DRAWN.rate(index)


def _unchanged(model: nn.Module) -> nn.Module:
    return model


def _unmapped(model: nn.Module) -> Mapping[str, ParameterView] | None:
    return None


@dataclass
class Audited:
    """What a run and its audit left, and what they add up to."""

    config: RunConfig
    folder: Path
    scratch: Path
    honest: HonestOrder
    reference: ReferenceOrder
    facts: Facts
    model: nn.Module
    files: dict[str, bytes] = field(default_factory=dict)

    def copied(self, where: Path) -> Audited:
        """Return what was left so far, of which a test may change what it likes."""
        folder = shutil.copytree(self.folder, where / self.folder.name)
        scratch = shutil.copytree(self.scratch, where / self.scratch.name)
        named = {"evidence_folder": str(folder), "scratch_folder": str(scratch)}
        return replace(
            self,
            folder=folder,
            scratch=scratch,
            honest=self.honest.model_copy(update=named),
            reference=self.reference.model_copy(update=named),
        )

    def read(self) -> None:
        """Take every file of the evidence folder into ``files``."""
        self.files = {
            evidence.path(0, file.name): file.read_bytes() for file in self.folder.iterdir()
        }

    def judge(self) -> Judgement:
        """Return what the evidence in ``files`` adds up to, once it has been made smaller."""
        return judgement.judge(self.smaller().get, self.facts)

    def smaller(self) -> dict[str, bytes]:
        """Return ``files`` as the supervisor leaves them, by path.

        Those of a repeat that are not what its processes write stay as they are.
        """
        found = dict(self.files)
        for number, repeat in enumerate(self.facts.repeats):
            drawn = None
            if repeat.nonce is not None and evidence.path(number, audited.LEDGER) in self.files:
                rough = draws.why_rough(self.facts.precision, dropout=False) is not None
                optimizer = self.facts.workload.optimizer
                drawn = Draws(repeat.nonce, optimizer, ledger=True, rough=rough)
            trains, steps = self.config.mode is Mode.TRAIN, len(repeat.commitments)
            judged = tuple(stop.step for stop in repeat.stops)
            run = reduced.EvidenceFacts(self.config.precision, trains, steps, drawn, judged)
            folder = evidence.path(number, "")
            own = {p.removeprefix(folder): d for p, d in self.files.items() if p.startswith(folder)}
            try:
                smaller = reduced.smaller(own, run)
            except RunFailedError:
                continue
            found |= {evidence.path(number, name): data for name, data in smaller.items()}
        return found

    def finding(self, rule: str) -> Finding:
        """Return the first finding of ``rule``."""
        return next(f for f in self.judge().audit.findings if f.id == rule)

    def statuses(self) -> dict[str, str]:
        """Return rule -> status of the first finding of each rule in ``HONEST``."""
        findings = reversed(self.judge().audit.findings)
        found = {f.id: f.status.value for f in findings}
        return {rule: found[rule] for rule in HONEST}


#: What the rules that an audit in this process can judge say of an honest run.
HONEST = dict.fromkeys(("W1", "E1", "E2", "E3", "P1", "O1", "O2", "G1", "L1"), "pass")


def work(
    tmp_path: Path,
    *,
    post_process: Callable[[nn.Module], nn.Module] = _unchanged,
    parameter_map: Callable[[nn.Module], Mapping[str, ParameterView] | None] = _unmapped,
    optimizer_options: Mapping[str, bool] | None = None,
    audits: tuple[int, ...] = (0, 4, 7),
    end: int = END,
    replayable: bool = True,
    **changes: Any,
) -> Audited:
    """Work and be audited as a worker does; calibrator and verifier have not looked yet.

    Not ``replayable``: as a run of 65 replicas. No step can be replayed, so judged ones show more
    gradients (rule G1).
    """
    config = audit_config(**changes)
    folder, scratch = tmp_path / "repeat-0", tmp_path / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir()
    mesh = Parallelism() if replayable else Parallelism(dp_replicate=65)
    why = draws.why_no_ledger(config.mode.value, config.precision, mesh=mesh, state=0)
    rough = draws.why_rough(config.precision, dropout=False) is not None
    exact = why is None and not rough and DRAWN.compares_all(end + 1)
    every = exact and config.mode is Mode.TRAIN
    judged = JUDGED if config.mode is Mode.TRAIN else ()
    line = Stream(audits, end, ledger=why is None, judged=judged, every_step=every)
    workload = workloads.of(config)
    if config.mode is not Mode.TRAIN:
        line = Stream(audits, end, last_seed=DRAWN.audit(end))
    order = WorkOrder(
        config=config,
        evidence_folder=str(folder),
        collect_evidence=True,
        scratch_folder=str(scratch),
    )
    writer, baseline, backend = EvidenceWriter(line, order), OptimizerBaseline(), CpuBackend()
    dtype = getattr(torch, config.precision.stored_dtype)
    values = values_of(config, workload)
    model: nn.Module = build(workload.shape, config.seed, dtype, values=values)
    pristine = Pristine(model, described=True)
    model = post_process(model)
    canonical = Canonical(pristine.origin, model, parameter_map(model))
    writer.post_processed(pristine, model, canonical)
    options = optimizer_options or {"fused": True}
    plugin: Any = SimpleNamespace(name="odd", optimizer_options=lambda config: options)
    sizes = pristine.sizes
    stage = Stage(plugin, backend, config, workload, model, canonical, sizes, every_step=every)
    task = modes.begin(stage)
    stream = StepStream(line, task.sampler, task.ledger)
    if isinstance(task.sampler, StepSampler):
        stream.keeper = WeightsKeeper(
            task.sampler.show,
            backend.synchronize,
            lambda step: writer.weights(audited.judged_weights(step), canonical, alone=True),
        )
    for done in task.steps(stream, lambda tensors: None):
        if done.step.fence:
            task.sampler.read()
    line.send(StreamEnded(commitment=stream.commitment()))
    task.write(writer, baseline, stream.done)
    # What else is in the process is a matter of tests with a process of their own.
    tamper: Any = SimpleNamespace(types=None)
    task.be_audited(writer, stream, tamper)
    found = _orders(config, folder, scratch, line, model, judged, every_step=every)
    stops = tuple(Stop(step=step, at_ns=0, ns=1) for step in judged)
    committed = found.facts.repeats[0].model_copy(
        update={"nonce": NONCE, "commitments": line.commitments(), "stops": stops}
    )
    known = replace(found.facts, repeats=[committed], parallelism=mesh)
    return replace(found, facts=known)


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Audited]:
    """Return what ``work`` returns, made once for the tests of a file; it is for copies of it."""
    found: dict[str, Audited] = {}

    def once(**changes: Any) -> Audited:
        key = repr(sorted(changes.items()))
        if key not in found:
            found[key] = work(tmp_path_factory.mktemp("worked"), **changes)
        return found[key]

    return once


def _orders(
    config: RunConfig,
    folder: Path,
    scratch: Path,
    line: Line,
    model: nn.Module,
    judged: tuple[int, ...],
    *,
    every_step: bool,
) -> Any:
    probed = audited.ProbedEvidence.model_validate_json((folder / audited.PROBED).read_bytes())
    steps = audited.StepsEvidence.model_validate_json((folder / audited.STEPS).read_bytes())
    kept = next((step for step in steps.steps if step.weights_kept and not judged), None)
    weights = evidence.WeightsEvidence.model_validate_json((folder / evidence.WEIGHTS).read_bytes())
    common: dict[str, Any] = {
        "config": config,
        "seed": probed.seed,
        "passes": (
            *(*probed.passes, *(["step"] if kept else [])),
            *map(audited.judged_pass, judged),
        ),
        "token_seeds": {"live": probed.token_seed}
        | ({"step": kept.token_seed} if kept else {})
        | {audited.judged_pass(step): 1000 + step for step in judged},
        "judged": judged,
        "every_step": every_step,
        "evidence_folder": str(folder),
        "scratch_folder": str(scratch),
        "digests": {**line.announced(), **line.announced(scratch=True)},
    }
    stored = {p.name: p.dtype for p in weights.processed}
    full = config.audit is AuditMode.FULL
    return Audited(
        config=config,
        folder=folder,
        scratch=scratch,
        honest=HonestOrder(**common, borders=full, **_again(config, line)),
        reference=ReferenceOrder(**common, stored_dtypes=stored),
        facts=facts(config),
        model=model,
    )


def _again(config: RunConfig, line: Line) -> dict[str, Any]:
    """Return what the supervisor asks the honest run of a device to replay, by the order's names.

    On a CPU the reference run is asked: tests move the entries from one order to the other.
    """
    if audited.LEDGER not in line.announced():
        return {}
    steps = sum(isinstance(m, Paused) for m in line.sent)
    if config.mode is not Mode.TRAIN:
        calls = tuple(
            CallToReplay(index=i, token_seed=1000 + i, places=DRAWN.places(i))
            for i in DRAWN.calls_compared(steps)
        )
        return {"calls": CallsToReplay(calls=calls, least=steps, seconds=0.0)}
    rates = tuple(map(rate_of, range(steps)))
    stream = StreamToReplay(
        token_seeds=tuple(1000 + i for i in range(steps)), rates=rates, least=steps, seconds=0.0
    )
    return {"stream": stream, "rates": rates}


def facts(config: RunConfig, repeats: int = 1) -> Facts:
    """Return what is judged beside the evidence: a quiet host and no ceiling."""
    workload = workload_facts().model_copy(update={"mode": config.mode.value})
    return Facts(
        precision=config.precision,
        repeats=[timing([1000], warmup_steps=WARMUP)] * repeats,
        shown=(),
        reference=pins.pinned_digests(),
        pinned=pins.pinned_digests(),
        workload=workload,
        parallelism=Parallelism(),
        ceilings=None,
        peak_flops=None,
        system=builders.make_record(repeats=1).system,
        patches=(),
        helpers=(),
        variables=(),
        is_debug=True,
        on_host=True,
        sharp_start=sharp_of(config, workload),
    )


def _unseen(*_: object) -> evidence.NamespaceEvidence:
    return evidence.NamespaceEvidence(
        callables=0, operators=0, replaced=(), device_kernels=0, libraries=()
    )


def examine(found: Audited) -> Audited:
    """Let calibrator and verifier look at ``found``, one after the other."""
    stream = found.honest.stream
    exact = stream is not None and draws.why_rough(found.config.precision, dropout=False) is None
    line = Replayed(DRAWN.recomputed(len(stream.token_seeds)) if exact and stream else ())
    replay(found, line)
    line.incoming.append(found.reference)
    if exact and audited.REPLAYED in line.announced():
        line.incoming.append(recompute_order(found, line))
    reference_run.answer(line)
    assert isinstance(line.sent[-1], Done)
    for name, digest in line.announced().items():
        assert hashlib.sha256((found.folder / name).read_bytes()).hexdigest() == digest
    found.read()
    return found


def replay(found: Audited, line: Replayed) -> Replayed:
    """Make the honest run of ``found``, which tells ``line`` what it does; return ``line``."""
    with pytest.MonkeyPatch.context() as patch:
        # Of pytest's own process there is nothing to say.
        patch.setattr(
            honest_run, "unreachable_watch", lambda **_: SimpleNamespace(evidence=_unseen)
        )
        patch.setattr(honest_run, "litmus", lambda config: None)
        honest_run.make(line, found.honest)
    return line


def recompute_order(found: Audited, line: Replayed) -> RecomputeOrder:
    """Return what the supervisor asks of the reference about the steps that ``line`` has kept."""
    files = line.announced(scratch=True)
    return RecomputeOrder(
        config=found.config,
        device="cpu",
        steps=tuple(
            KeptStep(
                index=step,
                token_seed=1000 + step,
                commitment=line.commitments[step],
                weights=audited.replayed_weights(step),
                sha256=files[audited.replayed_weights(step)],
            )
            for step in line.steps
        ),
        evidence_folder=str(found.folder),
        scratch_folder=str(found.scratch),
        digests={**found.honest.digests, **line.announced()},
    )


def audit(tmp_path: Path, **changes: Any) -> Audited:
    """Return a run with its audit; see ``work``."""
    return examine(work(tmp_path, **changes))
