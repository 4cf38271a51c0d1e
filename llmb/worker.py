"""The process that holds the plugin: model, post-processing, train loop, evidence.

Read ``work`` from top to bottom. It is told the seed of the model but of no token, takes the steps
of the stream as they come, and cannot tell where the timed window lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import AdamW

from llmb import workloads
from llmb.config import AuditMode, RunConfig
from llmb.errors import UnavailableError
from llmb.guard import Guard
from llmb.measure import clock
from llmb.notebook import Notebook, Pristine
from llmb.observe import probes, settings
from llmb.observe.canonical import Canonical
from llmb.observe.examination import Examination, places
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.weights import FenceSamples
from llmb.observe.witness import Witness
from llmb.plugin.backend import Backend, is_lazy
from llmb.plugin.manager import Plugin
from llmb.records import audited, evidence
from llmb.reference.data import Batch
from llmb.reference.models import build
from llmb.reference.optimizer import build_adamw
from llmb.reference.recipe import Recipe
from llmb.reference.shapes import Shape
from llmb.reference.train_loop import StepDone, train_loop
from llmb.step_stream import Batches, StepStream, fence
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Phase, Ready, Tick, Worked, WorkOrder


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
    workload = workloads.of(config)
    dtype = getattr(torch, config.precision.stored_dtype)
    model: nn.Module = build(workload.shape, config.seed, dtype, config.device)
    pristine = Pristine(model, described=order.collect_evidence)

    channel.send(Phase(name="post-processing"))
    model = plugin.post_process_model(model, config)  # permitted point 2
    canonical = Canonical(pristine.origin, model, plugin.parameter_map(model))
    notebook.post_processed(pristine, model, canonical)
    notebook.write(evidence.SETTINGS, settings.compare(settings_before, settings.snapshot()))

    optimizer = build_adamw(
        model.parameters(), workload.recipe.optimizer, **plugin.optimizer_options(config)
    )
    samples = FenceSamples(model.parameters(), config.seed)
    stream = StepStream(channel, Witness(model, optimizer, lazy=is_lazy(backend)))
    backend.reset_peak_memory()
    channel.send(Phase(name="training"))
    channel.send(Ready())
    batches = Batches(config, workload.shape, backend)
    clipped = Clipped(notebook, plugin, model, backend, stream)
    for done in training(config, workload.recipe, model, optimizer, stream, batches, clipped):
        stream.witness.after()
        if done.step.index == 0 and not clipped.shown:
            notebook.program(plugin, [done.loss, *model.parameters()])
        backend.step_end()
        channel.send(Tick(index=done.step.index, ns=clock.now_ns()))
        if done.step.fence:
            channel.send(fence(done, plugin, backend, samples, stream))

    backend.step_end()
    backend.synchronize()
    stage = Stage(plugin, model, canonical, backend, config, workload.shape, pristine.sizes)
    if guard is not None:
        own = {StepStream: stream, Witness: stream.witness, Canonical: canonical, Clipped: clipped}
        guard.close({**own, Notebook: notebook, Channel: channel, FenceSamples: samples})
    if order.collect_evidence:
        channel.send(Phase(name="writing evidence"))
        notebook.write(evidence.OPTIMIZER, baseline.observe(optimizer, model, stream.done))
        notebook.write_bytes(evidence.FENCES, save(samples.tensors()))
        notebook.plugin(plugin)
    if guard is not None and batches.latest:
        be_audited(notebook, stage, stream, batches.latest, guard)
    channel.send(Worked(steps=stream.done))


def training(
    config: RunConfig,
    recipe: Recipe,
    model: nn.Module,
    optimizer: AdamW,
    stream: StepStream,
    batches: Batches,
    clipped: Clipped,
) -> Iterator[StepDone]:
    """Train as the workload's original does, and yield after each step."""
    return train_loop(
        *(model, optimizer, stream, batches.make, stream.pause),
        context=lambda: autocast(config),
        clip_grad_norm=recipe.clip_grad_norm,
        clipped=clipped.seen,
    )


class Clipped:
    """What is done in every step once its gradients are clipped.

    The optimizer begins with the gradients as numbers: on a lazy device the program is cut here.
    One compiled together with the optimizer's would not round them, and O2 could not be replayed.
    """

    # See ``Witness``: nothing can be replaced on the object alone.
    __slots__ = ("_backend", "_model", "_notebook", "_plugin", "_stream", "shown")

    def __init__(
        self,
        notebook: Notebook,
        plugin: Plugin,
        model: nn.Module,
        backend: Backend,
        stream: StepStream,
    ) -> None:
        """Cut the programs of ``backend`` where it is lazy; the first one is written down."""
        self._notebook, self._plugin, self._model = notebook, plugin, model
        self._backend, self._stream = backend, stream
        #: The program of a step is in the notebook: what follows the cut has no products.
        self.shown = False

    def seen(self) -> None:
        """Cut, and let the witness look."""
        if is_lazy(self._backend):
            if not self.shown:
                gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
                self._notebook.program(self._plugin, gradients)
                self.shown = True
            self._backend.step_end()
        self._stream.witness.clipped()


@dataclass(frozen=True)
class Stage:
    """The model as it was trained, and what it runs on."""

    plugin: Plugin
    model: nn.Module
    canonical: Canonical
    backend: Backend
    config: RunConfig
    shape: Shape
    #: Elements of each canonical parameter, in the model's order.
    sizes: Mapping[str, int]

    def without_dropout(self, batches: Sequence[Batch]) -> Tensor:
        """Make the step's pass again as anybody can compute it; dropout stays off."""
        self.model.eval()
        return self.untimed_pass(batches)

    def untimed_pass(self, batches: Sequence[Batch]) -> Tensor:
        """Go forward and backward as a step does, from no gradients; return the loss."""
        self.model.zero_grad(set_to_none=True)
        self.backend.step_begin()
        total = torch.zeros(())
        for part in batches:
            with autocast(self.config):
                loss = self.model(part.ids, labels=part.labels, **part.extra)
            loss = loss / len(batches)
            loss.backward()
            total = total.to(loss.device) + loss.detach()
        self.backend.step_end()
        return total


def autocast(config: RunConfig) -> AbstractContextManager[object]:
    """Return the context of a forward pass."""
    if not config.mixed_precision:
        return nullcontext()
    dtype = getattr(torch, config.precision.dtype)
    return torch.autocast(torch.device(config.device).type, dtype)


def be_audited(
    notebook: Notebook,
    stage: Stage,
    stream: StepStream,
    batches: Sequence[Batch],
    guard: Guard,
) -> None:
    """Leave what calibrator and verifier need: weights, gradients, audited steps, and the probes.

    The order matters: the last step's gradients first, and what destroys the weights last.
    """
    last, canonical, witness = stream.last, stage.canonical, stream.witness
    if last is None:
        return
    notebook.phase("being audited: what was replaced")
    guard.write(notebook, stage.plugin)
    notebook.phase("being audited: the last step")
    witness.read()
    examination = Examination(canonical, stage.shape, last.seed)
    glances = witness.glance_again(last.step, "before")
    drawn = getattr(stage.shape, "dropout", 0.0) > 0
    if not drawn:
        examination.live(last.loss)
    glances |= witness.glance_again(last.step, "after")
    if drawn:
        examination.live(stage.without_dropout(batches))
    notebook.phase("being audited: weights")
    notebook.weights(audited.LIVE_WEIGHTS, canonical)
    if witness.steps():
        witness.swap()
        notebook.weights(audited.STEP_WEIGHTS, canonical)
        witness.swap()
    witness.release()
    notebook.write(audited.STEPS, stream.evidence())
    if guard.types is not None:
        notebook.phase("being audited: types of operands")
        notebook.write(evidence.TYPES, guard.types.step(lambda: stage.untimed_pass(batches)))
    failure, dtype = None, stage.config.precision.dtype
    if canonical.missing:
        failure = f"{len(canonical.missing)} parameters were not found: {canonical.missing[0]}, ..."
    for name in () if failure else probes.PROBES:
        notebook.phase(f"being audited: probe {name}")
        context = autocast(stage.config)
        examination.probe(name, stage.model, stage.backend, dtype, batches[-1], context)
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
        f"{index}/where": narrowest(places(canonical, stage.sizes, stored))
        for index, stored in witness.gradients_seen()
    }
    notebook.write_bytes(audited.STEP_VALUES, save(witness.tensors() | where | on_host(glances)))


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` as evidence has them: float32 on the host."""
    return {name: tensor.to("cpu").float() for name, tensor in tensors.items()}


def narrowest(places: Tensor) -> Tensor:
    """Return element numbers in four bytes where they fit: they are a third of the evidence."""
    largest = torch.iinfo(torch.int32).max
    return places.to(torch.int32) if places.numel() and places.max() <= largest else places


if __name__ == "__main__":
    serve(work)
