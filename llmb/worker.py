"""The process that holds the plugin: model, post-processing, train loop, evidence.

Read ``work`` from top to bottom. It is told the seed of the model but of no token, takes the steps
of the stream as they come, and cannot tell where the timed window lies.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from llmb import workloads
from llmb.config import RunConfig
from llmb.errors import RunFailedError, UnavailableError
from llmb.measure import clock
from llmb.observe import compilations, model_tree, plugin_files, settings
from llmb.observe.closed_components import closed_components
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.weights import FenceSamples, digests
from llmb.plugin.backend import Backend
from llmb.plugin.manager import Plugin
from llmb.records import evidence
from llmb.records.canonical import pretty_bytes
from llmb.reference.data import random_tokens
from llmb.reference.llama import build_llama
from llmb.reference.optimizer import build_adamw
from llmb.reference.shapes import LlamaShape
from llmb.reference.train_loop import Step, StepDone, train_loop
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import (
    EvidenceFile,
    Fence,
    Message,
    Phase,
    Ready,
    StepOrder,
    Stop,
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
    pristine = notebook.model(model)

    channel.send(Phase(name="post-processing"))
    model = plugin.post_process_model(model, config)  # permitted point 2
    notebook.post_processed(pristine, model, plugin)
    notebook.write(evidence.SETTINGS, settings.compare(settings_before, settings.snapshot()))

    optimizer = build_adamw(model.parameters(), **plugin.optimizer_options(config))
    samples = FenceSamples(model.parameters(), config.seed)
    stream = StepStream(channel)
    backend.reset_peak_memory()
    channel.send(Phase(name="training"))
    channel.send(Ready())
    batches = Batches(config, shape, backend)
    for done in train_loop(model, optimizer, stream, batches.make):
        if done.step.index == 0:
            notebook.program(plugin, [done.loss, *model.parameters()])
        backend.step_end()
        channel.send(Tick(index=done.step.index, ns=clock.now_ns()))
        if done.step.fence:
            channel.send(fence(done, plugin, backend, samples, stream.starved))

    channel.send(Phase(name="writing evidence"))
    notebook.write(evidence.OPTIMIZER, baseline.observe(optimizer, model, stream.done))
    notebook.write_bytes(evidence.FENCES, save(samples.tensors()))
    notebook.plugin(plugin)
    channel.send(Worked(steps=stream.done))


class StepStream:
    """The steps of the run in the order they were sent, until the supervisor says stop."""

    def __init__(self, channel: Channel) -> None:
        """Read the stream from ``channel``."""
        self._channel = channel
        self._orders: deque[StepOrder] = deque()
        self._stop: int | None = None
        #: Steps completed, and steps that had to wait for their order to arrive.
        self.done = 0
        self.starved = 0

    def __iter__(self) -> Iterator[Step]:
        """Yield each step; asking for the next one says that the last is done."""
        while True:
            while (message := self._channel.receive(timeout_s=0)) is not None:
                self._take(message)
            if self._stop is not None and self.done >= self._stop:
                return
            if not self._orders:
                self.starved += self.done > 0
                self._take(self._channel.receive())
                continue
            order = self._orders.popleft()
            yield Step(order.index, order.seed, order.fence)
            self.done += 1

    def _take(self, message: Message | None) -> None:
        if isinstance(message, Stop):
            self._stop = message.steps
        elif isinstance(message, StepOrder):
            self._orders.append(message)


class Batches:
    """Fresh tokens on the device, one batch a step."""

    def __init__(self, config: RunConfig, shape: LlamaShape, backend: Backend) -> None:
        """Make batches for ``config`` at ``shape``."""
        self._config, self._shape, self._backend = config, shape, backend

    def make(self, seed: int) -> Tensor:
        """Begin a step: return its token ids ``[batch, sequence]`` on the device."""
        self._backend.step_begin()
        size, length = self._config.batch_size, self._shape.sequence_length
        ids = random_tokens(seed, size, length, self._shape.vocab_size)
        return ids.to(self._config.device, non_blocking=True)


def fence(
    done: StepDone, plugin: Plugin, backend: Backend, samples: FenceSamples, starved: int
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
        starved_steps=starved,
        peak_memory_bytes=backend.memory().peak_bytes,
        energy_j=energy.joules if energy else None,
        energy_source=energy.source if energy else None,
        energy_scope=energy.scope if energy else None,
        telemetry=compilations.torchs_own() | plugin.telemetry(backend),
    )


class Pristine:
    """What is remembered of the model before post-processing: text and digests, no tensor."""

    def __init__(self, model: nn.Module) -> None:
        """Describe ``model``."""
        self.tree = model_tree.describe(model)
        self.digests = digests(model)


class Notebook:
    """The evidence folder: every file is announced with its digest."""

    def __init__(self, channel: Channel, order: WorkOrder) -> None:
        """Write into the folder of ``order``; a trial that wants no evidence writes none."""
        self._channel = channel
        self._folder = Path(order.evidence_folder)
        self._wanted = order.collect_evidence

    def model(self, model: nn.Module) -> Pristine | None:
        """Describe the model before post-processing."""
        return Pristine(model) if self._wanted else None

    def post_processed(self, pristine: Pristine | None, model: nn.Module, plugin: Plugin) -> None:
        """Write down what post-processing did to ``pristine``."""
        if pristine is None:
            return
        views = plugin.parameter_map(model)
        processed = digests(model, views)
        self.write(
            evidence.MODEL,
            evidence.ModelEvidence(before=pristine.tree, after=model_tree.describe(model)),
        )
        self.write(
            evidence.WEIGHTS,
            evidence.WeightsEvidence(
                pristine=pristine.digests,
                processed=processed,
                padding=tuple(sorted({n for view in (views or {}).values() for n in view.padding})),
            ),
        )

    def plugin(self, plugin: Plugin) -> None:
        """Write down which files of the plugin were loaded, and what it declares."""
        if not self._wanted:
            return
        found = evidence.PluginEvidence(
            files=plugin_files.loaded_sources(plugin.module_name),
            closed_components=closed_components(
                plugin.module_name, plugin.distribution, plugin.native_libraries()
            ),
            declared_patches=plugin.patches(),
        )
        self.write(evidence.PLUGIN, found)

    def program(self, plugin: Plugin, tensors: Sequence[Tensor]) -> None:
        """Write down the program that is about to compute ``tensors``, where the device has one."""
        if self._wanted and (text := plugin.program(tensors)) is not None:
            self.write_bytes(evidence.PROGRAM, text.encode(errors="backslashreplace"))

    def write(self, name: str, value: evidence.Evidence) -> None:
        """Write ``value`` as the JSON file ``name``."""
        self.write_bytes(name, pretty_bytes(value))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write the file ``name`` and announce its digest."""
        if not self._wanted:
            return
        (self._folder / name).write_bytes(data)
        self._channel.send(EvidenceFile(name=name, sha256=hashlib.sha256(data).hexdigest()))


if __name__ == "__main__":
    serve(work)
