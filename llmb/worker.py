"""The process that holds the plugin: model, post-processing, train loop, evidence.

Read ``work`` from top to bottom. It is told the seed of the model but of no token, takes the steps
of the stream as they come, and cannot tell where the timed window lies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor, nn

from llmb import workloads
from llmb.config import AuditMode, RunConfig
from llmb.errors import RunFailedError, UnavailableError
from llmb.measure import clock
from llmb.notebook import Notebook, Pristine
from llmb.observe import compilations, namespace, probes, settings, surroundings, types
from llmb.observe.canonical import Canonical
from llmb.observe.examination import Examination, places
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.weights import FenceSamples
from llmb.observe.witness import Witness
from llmb.plugin.backend import Backend
from llmb.plugin.manager import Plugin
from llmb.records import audited, evidence
from llmb.reference.data import random_tokens
from llmb.reference.llama import build_llama
from llmb.reference.optimizer import build_adamw
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, StepDone, train_loop
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import (
    AuditRequest,
    Fence,
    Message,
    Paused,
    Phase,
    Proceed,
    Ready,
    StepOrder,
    Tick,
    Worked,
    WorkOrder,
)


def work(channel: Channel) -> None:
    """Carry out one work order."""
    order = channel.expect(WorkOrder)
    config, notebook = order.config, Notebook(channel, order)

    channel.send(Phase(name="loading the plugin"))
    baseline = OptimizerBaseline()
    guard = Guard(census=config.audit is AuditMode.FULL) if order.scratch_folder else None
    settings_before = settings.snapshot()
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    if not backend.is_available():
        raise UnavailableError(f"plugin {config.plugin!r}: device {config.device!r} has gone")
    plugin.set_environment(config)  # permitted point 1

    channel.send(Phase(name="making the model"))
    shape = workloads.find(config.workload, config.shape_overrides).shape
    dtype = getattr(torch, config.precision.stored_dtype)
    model: nn.Module = build_llama(shape, config.seed, dtype, config.device)
    pristine = Pristine(model, described=order.collect_evidence)

    channel.send(Phase(name="post-processing"))
    model = plugin.post_process_model(model, config)  # permitted point 2
    canonical = Canonical(pristine.origin, model, plugin.parameter_map(model))
    notebook.post_processed(pristine, model, canonical)
    notebook.write(evidence.SETTINGS, settings.compare(settings_before, settings.snapshot()))

    optimizer = build_adamw(model.parameters(), **plugin.optimizer_options(config))
    samples = FenceSamples(model.parameters(), config.seed)
    stream = StepStream(channel, Witness(model, optimizer))
    backend.reset_peak_memory()
    channel.send(Phase(name="training"))
    channel.send(Ready())
    batches = Batches(config, shape, backend)
    for done in train_loop(model, optimizer, stream, batches.make, stream.pause):
        stream.witness.after()
        if done.step.index == 0:
            notebook.program(plugin, [done.loss, *model.parameters()])
        backend.step_end()
        channel.send(Tick(index=done.step.index, ns=clock.now_ns()))
        if done.step.fence:
            channel.send(fence(done, plugin, backend, samples, stream))

    backend.step_end()
    backend.synchronize()
    if guard is not None:
        guard.close()
    if order.collect_evidence:
        channel.send(Phase(name="writing evidence"))
        notebook.write(evidence.OPTIMIZER, baseline.observe(optimizer, model, stream.done))
        notebook.write_bytes(evidence.FENCES, save(samples.tensors()))
        notebook.plugin(plugin)
        if guard is not None and batches.latest is not None:
            channel.send(Phase(name="being audited"))
            guard.write(notebook, plugin)
            stage = Stage(model, canonical, backend, config, shape)
            be_audited(notebook, stage, stream, pristine.sizes, batches.latest, guard)
    channel.send(Worked(steps=stream.done))


class StepStream:
    """The steps of the run in the order they were sent, until one is asked for as the last."""

    # See ``Witness``: nothing can be replaced on the object alone.
    __slots__ = (
        "_channel",
        "_orders",
        "done",
        "last",
        "longest_pause_ns",
        "pause_ns",
        "starved",
        "witness",
    )

    def __init__(self, channel: Channel, witness: Witness) -> None:
        """Read the stream from ``channel``; ``witness`` looks at the steps that are asked for."""
        self._channel = channel
        self._orders: deque[StepOrder] = deque()
        self.witness = witness
        #: Steps completed, and steps that had to wait for their order to arrive.
        self.done = 0
        self.starved = 0
        #: Host time that all pauses took so far, and the longest.
        self.pause_ns = 0
        self.longest_pause_ns = 0
        #: The step in whose pause the stream ended, its loss, and the seed of what follows.
        self.last: Last | None = None

    def __iter__(self) -> Iterator[Step]:
        """Yield each step; asking for the next one says that the last is done."""
        while True:
            while not self._orders:
                self.starved += self.done > 0
                self._take(self._channel.receive())
            order = self._orders.popleft()
            yield Step(order.index, order.seed, order.fence)
            self.done += 1

    def pause(self, step: Step, loss: Tensor) -> bool:
        """Ask whether ``step`` is looked at, the same way in every step; True ends the stream.

        The answer is not in this process before its gradients are, for nobody has given it yet.
        """
        begin = clock.now_ns()
        self.witness.next()
        self._channel.send(Paused(index=step.index))
        while not isinstance(message := self._channel.receive(), (Proceed, AuditRequest)):
            self._take(message)
        if isinstance(message, AuditRequest):
            if message.last:
                self.last = Last(step, loss, message.seed)
                return True
            self.witness.before(step, message.seed)
        took = clock.now_ns() - begin
        self.pause_ns += took
        self.longest_pause_ns = max(took, self.longest_pause_ns)
        return False

    def evidence(self) -> audited.StepsEvidence:
        """Return what there is to know of the audited steps, and what the pauses cost."""
        return audited.StepsEvidence(
            steps=self.witness.steps(),
            pause_ns=self.pause_ns,
            longest_pause_ns=self.longest_pause_ns,
        )

    def _take(self, message: Message | None) -> None:
        if isinstance(message, StepOrder):
            self._orders.append(message)


@dataclass(frozen=True)
class Last:
    """The step in whose pause the stream ended: its gradients are there, its update is not made."""

    step: Step
    loss: Tensor
    seed: int


class Guard:
    """What the process was like before any code of the plugin, for rules N1, N2 and P2."""

    __slots__ = ("_names", "_surroundings", "types")

    def __init__(self, *, census: bool) -> None:
        """Look; with ``census`` listen for compiled programs, too."""
        self._names = namespace.unreachable_watch()
        self._surroundings = surroundings.Census()
        self.types = types.Census() if census else None

    def close(self) -> None:
        """Look again, at the end of the stream: what is put back later does not count."""
        self._names.close()

    def write(self, notebook: Notebook, plugin: Plugin) -> None:
        """Write down what has changed since."""
        whose = plugin.module_name, plugin.distribution
        notebook.write(evidence.NAMESPACE, self._names.evidence(*whose))
        found = self._surroundings.evidence(*whose, plugin.native_libraries())
        notebook.write(evidence.SURROUNDINGS, found)


@dataclass(frozen=True)
class Stage:
    """The model as it was trained, and what it runs on."""

    model: nn.Module
    canonical: Canonical
    backend: Backend
    config: RunConfig
    shape: LlamaShape

    def untimed_pass(self, ids: Tensor) -> None:
        """Go once forward and backward, and drop the gradients."""
        self.model.zero_grad(set_to_none=True)
        self.backend.step_begin()
        self.model(ids, labels=ids).backward()
        self.backend.step_end()
        self.model.zero_grad(set_to_none=True)


class Batches:
    """Fresh tokens on the device, one batch a step."""

    __slots__ = ("_backend", "_config", "_shape", "latest")

    def __init__(self, config: RunConfig, shape: LlamaShape, backend: Backend) -> None:
        """Make batches for ``config`` at ``shape``."""
        self._config, self._shape, self._backend = config, shape, backend
        #: The tensor the model was given last.
        self.latest: Tensor | None = None

    def make(self, seed: int) -> Tensor:
        """Begin a step: return its token ids ``[batch, sequence]`` on the device."""
        self._backend.step_begin()
        size, length = self._config.batch_size, self._shape.sequence_length
        ids = random_tokens(seed, size, length, self._shape.vocab_size)
        self.latest = ids.to(self._config.device, non_blocking=True)
        return self.latest


def fence(
    done: StepDone, plugin: Plugin, backend: Backend, samples: FenceSamples, stream: StepStream
) -> Fence:
    """Wait for the device, read results back, and return what the supervisor stamps.

    Raises:
        RunFailedError: the loss is not a finite number.
    """
    backend.synchronize()
    value, bits = samples.read(done.loss)
    if not math.isfinite(value):
        raise RunFailedError(
            f"the loss is {value} after {done.step.index + 1} steps: the model has become "
            "non-finite; try another --precision, and check what the plugin does to the model"
        )
    energy = backend.energy()
    return Fence(
        steps=done.step.index + 1,
        worker_ns=clock.now_ns(),
        loss=value,
        bits=bits,
        cpu_s=clock.cpu_s(),
        starved_steps=stream.starved,
        audited_steps=stream.witness.read(),
        pause_ns=stream.pause_ns,
        peak_memory_bytes=backend.memory().peak_bytes,
        energy_j=energy.joules if energy else None,
        energy_source=energy.source if energy else None,
        energy_scope=energy.scope if energy else None,
        telemetry=compilations.torchs_own() | plugin.telemetry(backend),
    )


def be_audited(
    notebook: Notebook,
    stage: Stage,
    stream: StepStream,
    sizes: Mapping[str, int],
    ids: Tensor,
    guard: Guard,
) -> None:
    """Leave what calibrator and verifier need: weights, gradients, audited steps, and the probes.

    The order matters: the last step's gradients first, and what destroys the weights last.
    """
    last, canonical, witness = stream.last, stage.canonical, stream.witness
    if last is None:
        return
    witness.read()
    examination = Examination(canonical, stage.shape, last.seed)
    examination.live(last.loss)
    notebook.weights(audited.LIVE_WEIGHTS, canonical)
    if witness.steps():
        witness.swap()
        notebook.weights(audited.STEP_WEIGHTS, canonical)
        witness.swap()
    witness.release()
    notebook.write(audited.STEPS, stream.evidence())
    if guard.types is not None:
        notebook.write(evidence.TYPES, guard.types.step(lambda: stage.untimed_pass(ids)))
    failure = None
    if canonical.missing:
        failure = f"{len(canonical.missing)} parameters were not found: {canonical.missing[0]}, ..."
    for name in () if failure else probes.PROBES:
        examination.probe(name, stage.model, stage.backend, stage.config.precision.dtype, ids)
    notebook.write_bytes(audited.GRADIENTS, save(examination.tensors))
    probed = audited.ProbedEvidence(
        seed=last.seed,
        last_step=last.step.index,
        token_seed=last.step.seed,
        passes=tuple(examination.passes),
        missing=tuple(examination.missing),
        failure=failure,
    )
    notebook.write(audited.PROBED, probed)
    where = {
        f"{index}/where": narrowest(places(canonical, sizes, stored))
        for index, stored in witness.gradients_seen()
    }
    notebook.write_bytes(audited.STEP_VALUES, save(witness.tensors() | where))


def narrowest(places: Tensor) -> Tensor:
    """Return element numbers in four bytes where they fit: they are a third of the evidence."""
    largest = torch.iinfo(torch.int32).max
    return places.to(torch.int32) if places.numel() and places.max() <= largest else places


if __name__ == "__main__":
    serve(work)
