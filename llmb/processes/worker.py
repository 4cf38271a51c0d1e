"""The process that holds the plugin: model, post-processing, steps, evidence.

Read ``work`` from top to bottom. The worker knows the seed of the model but no seed of tokens,
takes the steps of the stream as the steps come, and cannot tell where the timed window lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save

from llmb import workloads
from llmb.config import RunConfig
from llmb.errors import RunFailedError, UnavailableError
from llmb.observe import settings
from llmb.observe.canonical import Canonical, check_dense
from llmb.observe.fence_census import wait_for_children
from llmb.observe.first_model import first_model
from llmb.observe.optimizer import OptimizerBaseline
from llmb.observe.step_sampler import StepSampler
from llmb.observe.weights import FenceSamples
from llmb.parallel.shared_channel import SharedChannel
from llmb.parallel.together import of_all
from llmb.plugin.backend import Backend
from llmb.plugin.manager import Plugin
from llmb.processes import modes, step_stream
from llmb.processes.evidence_writer import EvidenceWriter, Pristine
from llmb.processes.modes import executors
from llmb.processes.modes import stage as stage_module
from llmb.processes.modes.comparing import compared
from llmb.processes.modes.profile import profile
from llmb.processes.modes.stage import Stage
from llmb.processes.step_stream import StepStream, WeightsKeeper, fence, readings
from llmb.processes.tamper_baseline import TamperBaseline
from llmb.records import audited, evidence
from llmb.reference.train_loop import StepDone
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import (
    Failure,
    Fence,
    Phase,
    Readings,
    Ready,
    StreamEnded,
    Tick,
    Worked,
    WorkOrder,
)

if TYPE_CHECKING:
    from llmb.parallel.layout import Layout
    from llmb.parallel.ranks import Ranks


def work(channel: Channel) -> None:
    """Carry out one work order, alone or as one of the ranks."""
    with ExitStack() as company:
        carry_out(channel, company)


def carry_out(channel: Channel, company: ExitStack) -> None:
    """Do a worker's work; ``company`` holds the connection to other ranks, and closes it."""
    order = channel.expect(WorkOrder)
    config, writer = order.config, EvidenceWriter(channel, order)
    workload = workloads.of(config)

    channel.send(Phase(name="loading the plugin"))
    prepared = executors.prepare(config)
    baseline = OptimizerBaseline(workload.recipe.optimizer.name)
    before = None
    if order.audited and order.only is None:
        asks, census = (readings.__code__,), config.audit.has_census
        before = TamperBaseline(
            census=census,
            anew=prepared,
            invited=asks,
            modules=(step_stream, stage_module, modes.module_of(config.mode)),
            ranks=order.place is not None,
        )
        before.exactness.hold(channel)
    settings_before = settings.snapshot()
    plugin = Plugin(config.plugin)
    backend = backend_of(plugin, config)
    plugin.set_environment(config)  # permitted point 1
    ranks, config, channel = met(order, backend, channel, company, before)

    channel.send(Phase(name="making the model"))
    model = first_model(config, workload)
    pristine = Pristine(model, described=order.collect_evidence)

    channel.send(Phase(name="post-processing"))
    if before is not None:
        before.exactness.accept(next(model.parameters()))
    model = plugin.post_process_model(model, config)  # permitted point 2
    if before is not None:  # callbacks that a plugin takes back before the first pause
        before.exactness.look(0)
    check_dense(model, config.plugin)
    canonical = Canonical(pristine.origin, model, plugin.parameter_map(model))
    writer.post_processed(pristine, model, canonical)
    changed = evidence.SettingsEvidence(before=settings_before, after=settings.snapshot())
    writer.write(evidence.SETTINGS, of_all(ranks, changed))

    layout = laid_out(config, ranks)
    every = order.every_step
    if ranks is not None:  # rank 0 knows
        every = ranks.from_leader(every)
    stage = Stage(
        plugin,
        backend,
        config,
        workload,
        model,
        canonical,
        pristine.sizes,
        ranks,
        layout,
        every,
        order.only,
    )
    task = modes.begin(stage)
    samples = FenceSamples(model.parameters(), config.seed)
    exactness = before.exactness if before is not None else None
    stream = StepStream(channel, task.sampler, task.ledger, exactness)
    if isinstance(task.sampler, StepSampler):
        written = partial(keep, writer, canonical, layout)
        stream.keeper = WeightsKeeper(task.sampler.show, backend.synchronize, written)
    if exactness is not None:
        parts = (stream.sampler, stream.ledger, stream.keeper, getattr(channel, "_own", None))
        held = (part for part in parts if part is not None)
        exactness.hold(exactness, stream, channel, *held)
    backend.reset_peak_memory()
    channel.send(Phase(name=task.phase))
    channel.send(Ready())
    fences: list[tuple[Fence, Readings]] = []
    if exactness is not None:  # this function began before any code of the plugin
        exactness.compare(0)
    for done in task.steps(stream, partial(writer.program, plugin)):
        backend.step_end()
        channel.send(Tick(index=done.step.index, ns=stream.now_ns()))
        if done.step.index == 0:
            wait_for_children()
        if done.step.fence:
            told = task.told()
            stamped = fence(whole(done, ranks, backend), backend, samples, stream, told)
            channel.send(stamped)
            read = readings(stamped.steps, plugin, backend, told)
            fences.append((stamped, read))
            channel.send(read)
            if before is not None:
                before.look(stamped.steps, stamped.worker_ns + stream.stopped_ns)

    backend.step_end()
    backend.synchronize()
    channel.send(StreamEnded(commitment=stream.commitment()))
    if before is not None:
        own: dict[type, object] = {StepStream: stream, task.sampler_class: task.sampler}
        kind = Channel if ranks is None else SharedChannel
        own |= {Canonical: canonical, EvidenceWriter: writer, kind: channel, FenceSamples: samples}
        if task.ledger is not None:
            own[task.ledger_class] = task.ledger
        before.close(own, stream.done)
    if order.collect_evidence:
        writer.phase("writing evidence")
        task.write(writer, baseline, stream.done)
        writer.write_bytes(evidence.FENCES, save(samples.tensors()))
        writer.plugin(plugin, ranks)
    look_back(order, stage, task, stream, writer, before, fences)
    channel.send(Worked(steps=stream.done))


def keep(writer: EvidenceWriter, canonical: Canonical, layout: Layout | None, step: int) -> None:
    """Write the weights of the judged ``step``: a collective call."""
    if layout is not None:
        layout.settle()
    writer.weights(audited.judged_weights(step), canonical, alone=True)


def look_back(
    order: WorkOrder,
    stage: Stage,
    task: modes.Task,
    stream: StepStream,
    writer: EvidenceWriter,
    before: TamperBaseline | None,
    fences: Sequence[tuple[Fence, Readings]],
) -> None:
    """Do the work after the stream has ended: the audit changes the weights."""
    if order.audited and stream.last is not None:
        if before is not None:
            writer.phase("being audited: what was replaced")
            before.write(writer, stage.plugin, stage.ranks)
        task.be_audited(writer, stream, before)
    if stage.ranks is not None and order.collect_evidence:
        writer.phase("comparing the ranks")
        writer.write(evidence.RANKS, compared(task, stage, stage.ranks, fences))
    if order.profile_folder:
        writer.phase("tracing one more step")
        profile(task.whole_step, stage.backend, Path(order.profile_folder))


def met(
    order: WorkOrder,
    backend: Backend,
    channel: Channel,
    company: ExitStack,
    before: TamperBaseline | None,
) -> tuple[Ranks | None, RunConfig, Channel]:
    """Meet the other ranks, if any; return the ranks, the run, and the common channel.

    Raises:
        RunFailedError: a rank did not come, or differs from rank 0.
        UnavailableError: the device has no communication library, such as NCCL.
    """
    if order.place is None:
        return None, order.config, channel
    if backend.distributed_backend is None:
        raise UnavailableError(
            f"plugin {order.config.plugin!r} names no library for ranks to communicate with, or "
            "this torch was built without distributed: use one rank"
        )
    channel.send(Phase(name=f"meeting {order.place.world_size - 1} other ranks"))
    from llmb.parallel.ranks import Ranks  # modules for ranks alone take long to import

    def give_up(reason: str) -> None:
        channel.send(Failure(error=RunFailedError.__name__, message=reason))

    library, limit_s = backend.distributed_backend, order.rank_timeout_s
    met_them = Ranks(order.place, library, order.repeat, limit_s, give_up, order.calls_folder)
    ranks = company.enter_context(met_them)
    if before is not None:
        before.know(ranks.lookout.thread)
    return ranks, ranks.agree(order.config), SharedChannel(channel, ranks)


def laid_out(config: RunConfig, ranks: Ranks | None) -> Layout | None:
    """Return the part of the model on each rank, None for one rank: a collective call."""
    if ranks is None:
        return None
    from llmb.parallel.layout import Layout

    return Layout(config, ranks.limit)


def whole(done: StepDone, ranks: Ranks | None, backend: Backend) -> StepDone:
    """Return ``done`` with the mean loss of all ranks, after the device has computed the loss."""
    if ranks is None:
        return done
    backend.synchronize()
    return StepDone(done.step, ranks.mean(done.loss))


def backend_of(plugin: Plugin, config: RunConfig) -> Backend:
    """Return the backend of ``plugin``.

    Raises:
        UnavailableError: the device was available for the offer, and is gone.
    """
    backend = plugin.backend(config)
    if not backend.is_available():
        raise UnavailableError(f"plugin {config.plugin!r}: device {config.device!r} has gone")
    return backend


if __name__ == "__main__":
    serve(work)
