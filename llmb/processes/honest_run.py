"""The process that makes an honest run on the device: no post-processing, no record.

The process holds the plugin's backend and environment, never the model as the plugin changes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from llmb import workloads
from llmb.config import Mode
from llmb.errors import RunFailedError
from llmb.measure.litmus import litmus
from llmb.observe import weights_file
from llmb.observe.exactness import Exactness
from llmb.observe.host_bytes import sha256_of
from llmb.observe.namespace import library_baseline, unreachable_watch
from llmb.observe.one_part import PartKeeper
from llmb.observe.passes import LIVE
from llmb.observe.probes import BRANCHES, PROBES
from llmb.observe.replay import can_replay, replay
from llmb.observe.rerun import Rerun, borders, how, how_border, inputs_for, wide
from llmb.observe.rerun_outputs import outputs_of
from llmb.plugin import discovery
from llmb.plugin.backend import full_float32_products, is_lazy
from llmb.plugin.builtin.host import keep_freed_memory
from llmb.plugin.kit.formats import set_float32_products
from llmb.plugin.manager import Plugin
from llmb.processes.evidence_writer import Announcer, apart
from llmb.processes.repetition import repeat
from llmb.processes.step_stream import seed_masks, without_finalizers
from llmb.records import audited, evidence
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import (
    Done,
    EvidenceFile,
    HonestOrder,
    KeepWeights,
    Paused,
    Phase,
    Proceed,
)


def answer(channel: Channel) -> None:
    """Answer one order."""
    make(channel, channel.expect(HonestOrder))
    channel.send(Done())


def make(channel: Channel, order: HonestOrder) -> None:
    """Repeat the worker's passes and audited optimizer steps, and write the results as files."""
    config = order.config
    announce = Announcer(channel, order.evidence_folder)
    installed = discovery.find(config.plugin)
    channel.send(Phase(name="what importing changes"))
    if order.library_modules:  # before any code of the plugin is loaded
        module, owner = installed.module, installed.distribution
        announce.write(evidence.LIBRARY, library_baseline(order.library_modules, module, owner))
    watch = unreachable_watch(anew=bool(order.library_modules))
    exactness = Exactness()
    plugin = Plugin(config.plugin)
    backend = plugin.backend(config)
    plugin.set_environment(config)
    exactness.look(0)
    set_float32_products(config.precision)  # whatever mode the plugin's environment sets
    if backend.device_type == "cpu":
        keep_freed_memory()  # every pass allocates the same sizes again
    finish = backend.synchronize if is_lazy(backend) else None
    seeds = partial(seed_masks, backend)
    with Rerun(inputs_for(order), finish, seeds=seeds) as rerun:
        trains = config.mode is Mode.TRAIN
        values, steps = audited_steps(rerun) if trains else ({}, None)
        if order.only is not None:
            rerun.keeper = PartKeeper(order.only, audited.IS_HONEST)
        # The honest run first. Each part fails alone. Example: a device without float64 loses the
        # reference and keeps the honest run, the replay and the rest.
        with apart(channel, "an honest run"):
            if trains:
                shown = honest_passes(channel, order, rerun)
                shown |= dropped_steps(channel, order, rerun, steps)
            else:
                shown = honest_outputs(channel, order, rerun)
            announce.write_bytes(audited.HONEST, save(shown))
        kept = rerun.keeper
        if order.only is not None:
            rerun.keeper = PartKeeper(order.only, audited.IS_RIGHT)
        with apart(channel, "the reference on the device"), full_float32_products(backend):
            if trains:
                reference = device_reference(channel, order, rerun)
            else:
                reference = outputs_reference(channel, order, rerun)
            if reference:
                announce.write_bytes(audited.DEVICE_REFERENCE, save(reference))
        if kept is not None and rerun.keeper is not None:
            kept.tensors |= rerun.keeper.tensors
            announce.part(audited.PART_HONEST, kept, order.scratch_folder)
    if steps is not None:
        with apart(channel, "the replay of the optimizer's steps"):
            channel.send(Phase(name="optimizer steps"))
            replayed = optimizer_steps(order, values, steps)
            backend.synchronize()
            announce.write_bytes(audited.REPLAY, save(replayed))
    repeated = _Questions(channel, exactness, Path(order.scratch_folder))
    with without_finalizers():
        repeat(channel, order, rerun.inputs, announce, repeated, finish)
    with apart(channel, "the look at what was replaced"):
        channel.send(Phase(name="what was replaced"))
        # The functions that compute the expected values must be torch's own as well.
        module, owner = plugin.module_name, plugin.distribution
        exactness.look(0)
        exactness.compare(0)
        strangers = exactness.strangers(module, owner, watch.stands)
        seen = watch.evidence(module, owner).model_copy(update={"strangers": strangers})
        announce.write(audited.HONEST_NAMESPACE, seen)
    with apart(channel, "the sums that show how products are accumulated"):
        if order.borders and (sums := litmus(config)) is not None:
            announce.write(evidence.LITMUS, sums)


def honest_outputs(channel: Channel, order: HonestOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return the logits of honest runs in each class; none in a format unknown to llmb."""
    config, found = order.config, dict[str, Tensor]()
    if config.precision.judged_as is None:
        return found
    again, honest = outputs_of(rerun), how(config.precision, config.device)
    for name in order.passes:
        channel.send(Phase(name=name))
        one = again.logits(name, honest)
        found |= {f"{config.precision.name}/{key}": value for key, value in one.items()}
    for border in borders(config.precision) if order.borders else ():
        numerics = how_border(border, config.device)
        with _border(channel, border.name, found) as its:
            for name in (LIVE, *PROBES):
                its |= again.logits(name, numerics)
    return found


@contextmanager
def _border(channel: Channel, name: str, found: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """Yield a dictionary for results of the border to ``name``; ``found`` gets all or nothing.

    Example: a device without bfloat16 loses the border to BF16 and keeps the honest run.
    """
    channel.send(Phase(name=f"the border to {name}"))
    its: dict[str, Tensor] = {}
    with apart(channel, f"the border to {name}"):
        yield its
        found |= {f"{name}/{key}": value for key, value in its.items()}


def outputs_reference(channel: Channel, order: HonestOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return the reference logits of the passes that are too much work for the host."""
    found: dict[str, Tensor] = {}
    if not order.reference_passes:
        return found
    again, right = outputs_of(rerun), wide(order.config.precision, order.config.device)
    for name in order.reference_passes:
        channel.send(Phase(name=f"{name} in the wider format"))
        found |= again.logits(name, right)
    return found


def honest_passes(channel: Channel, order: HonestOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return gradients and losses in the declared format, and of the probes in narrower formats.

    The result is empty if llmb cannot compute in the declared format.
    """
    config, found = order.config, dict[str, Tensor]()
    if config.precision.judged_as is None:
        return found
    places = rerun.places(order.passes)
    batches = {
        name: config.micro_batch_size if name in PROBES else config.global_batch_size
        for name in order.passes
        if name not in places
    }
    declared, honest = config.precision.name, how(config.precision, config.device)
    for name in order.passes:
        channel.send(Phase(name=name))
        if name in places:
            found[f"{declared}/{name}"] = rerun.samples(places[name], honest, name)
        else:
            one = rerun.sketches(name, honest, batches[name])
            found |= {f"{declared}/{key}": value for key, value in one.items()}
    found |= rerun.with_wide_loss(declared, batches, places, config.device)
    for border in borders(config.precision) if order.borders else ():
        numerics = how_border(border, config.device)
        with _border(channel, border.name, found) as its:
            for name in PROBES:
                its |= rerun.sketches(name, numerics, 1)
    return found


def dropped_steps(
    channel: Channel,
    order: HonestOrder,
    rerun: Rerun,
    steps: audited.StepsEvidence | None,
) -> dict[str, Tensor]:
    """Return mean and distances of honest steps with dropout, each with other masks (rule G1).

    And the gradient of an honest step with the worker's masks. Empty without dropout, or without
    judged steps.
    """
    config, found = order.config, dict[str, Tensor]()
    drawn = getattr(rerun.inputs.shape, "dropout", 0.0) > 0
    if not drawn or steps is None or config.precision.judged_as is None:
        return found
    places, known = rerun.places(order.passes), {one.index: one for one in steps.steps}
    with apart(channel, "the honest steps with dropout"):
        for step in order.judged:
            name = audited.judged_pass(step)
            channel.send(Phase(name=f"{1 + audited.MASKS} steps with dropout, as step {step}"))
            alike, *others = rerun.dropped(name, places[name], audited.MASKS, config.device)
            rows = torch.stack(others)
            mean = rows.double().mean(0)
            sizes = [one.gradients for one in known[step].segments]
            parts = torch.split(rows.double() - mean, sizes, dim=1)
            prefix = f"{config.precision.name}/{name}"
            found[f"{prefix}/{audited.DROPPED}"] = mean.float()
            found[f"{prefix}/{audited.DROPPED_ALIKE}"] = alike
            found[f"{prefix}/{audited.DROPPED_APART}"] = torch.stack(
                [part.norm(dim=1) for part in parts], 1
            ).float()
    return found


def device_reference(channel: Channel, order: HonestOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return the reference of the passes that are too much work for the host.

    The probe ``branches`` is included. The reference run computes ``branches`` as well, so a
    comparison shows whether the device's wider format is really wider.
    """
    if not order.reference_passes:
        return {}
    right = wide(order.config.precision, order.config.device)
    found = rerun.sketches(BRANCHES, right, 1)
    places = rerun.places(order.reference_passes)
    for name in order.reference_passes:
        channel.send(Phase(name=f"{name} in the wider format"))
        if name in places:
            found[name] = rerun.samples(places[name], right, name)
        else:
            found |= rerun.sketches(name, right, order.config.global_batch_size)
    return found


def optimizer_steps(
    order: HonestOrder, values: Mapping[str, Tensor], steps: audited.StepsEvidence
) -> dict[str, Tensor]:
    """Return the results of torch's optimizer for the audited steps, at each step's own rate."""
    usual = workloads.of(order.config).recipe.optimizer
    found: dict[str, Tensor] = {}
    for step in steps.steps:
        own = order.rates[step.index] if order.rates else usual.lr
        constants = replace(usual, lr=own)
        if can_replay(step, values, constants):
            found |= replay(step, values, order.config.device, constants)
    return found


@dataclass(frozen=True)
class _Questions:
    """Checks the types of objects, and asks in each pause whether the reference repeats the step.

    The sampled gradients are committed to before the answer: no code in this process knows the
    answer while the gradients are computed.
    """

    channel: Channel
    exactness: Exactness
    scratch: Path

    def look(self, call: int) -> None:
        self.exactness.compare(call)
        self.exactness.look(call)

    def pause(self, step: int, row: Tensor, model: nn.Module, loss: Tensor) -> None:
        del loss
        self.exactness.look(step)
        self.channel.send(Paused(index=step, commitment=sha256_of(row)))
        answer = self.channel.receive()
        if isinstance(answer, KeepWeights):
            file = audited.replayed_weights(step)
            values = [(name, p.detach()) for name, p in model.named_parameters()]
            digest = weights_file.write(self.scratch / file, values)
            self.channel.send(EvidenceFile(name=file, sha256=digest, scratch=True))
        elif not isinstance(answer, Proceed):
            raise RunFailedError(f"{answer!r} came in the pause of a replayed step")


def audited_steps(rerun: Rerun) -> tuple[dict[str, Tensor], audited.StepsEvidence]:
    """Return the tensors and facts that the worker wrote of the audited steps.

    Raises:
        RunFailedError: a file differs from the file that the worker wrote.
    """
    read = rerun.inputs.read
    values = load(read(audited.STEP_VALUES))
    return values, audited.StepsEvidence.model_validate_json(read(audited.STEPS))


if __name__ == "__main__":
    serve(answer)
