"""The process that computes the expected values: on the CPU, in a wider format, without a plugin.

The process runs after the worker has ended, so no worker has ever seen a reference value.
"""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from safetensors.torch import save
from torch import Tensor, nn

from llmb import clock, workloads
from llmb.config import Mode, is_cpu
from llmb.errors import RunFailedError
from llmb.inputs.start import values_of
from llmb.observe.host_bytes import sha256_of
from llmb.observe.idle import idle_share
from llmb.observe.one_part import PartKeeper
from llmb.observe.passes import LIVE, bare
from llmb.observe.probes import BRANCHES, PROBES
from llmb.observe.rerun import Rerun, how, inputs_for, wide
from llmb.observe.rerun_outputs import outputs_of
from llmb.plugin.builtin.host import keep_freed_memory
from llmb.plugin.kit.formats import set_float32_products
from llmb.processes.evidence_writer import Announcer
from llmb.processes.recomputation import recomputed
from llmb.processes.repetition import repeat
from llmb.records import audited
from llmb.reference.models import initial_value
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Done, Phase, RecomputeOrder, ReferenceOrder, Tick


def answer(channel: Channel) -> None:
    """Answer orders until the channel is closed.

    A second ``ReferenceOrder`` is for passes that a device failed to make. Steps that a device has
    replayed are recomputed after the honest run has ended.
    """
    while (order := channel.receive()) is not None:
        if isinstance(order, RecomputeOrder):
            recompute(channel, order)
        elif isinstance(order, ReferenceOrder):
            make(channel, order)
        else:
            raise RunFailedError(f"{order.kind!r} came where a ReferenceOrder was due")


def make(channel: Channel, order: ReferenceOrder) -> None:
    """Make the passes of ``order``, and repeat steps or calls; write the results as files."""
    config = order.config
    announce = Announcer(channel, order.evidence_folder)
    right = wide(config.precision, "cpu")
    keep_freed_memory()  # every pass allocates the same sizes again
    shown: dict[str, Tensor] = {}
    with Rerun(inputs_for(order), shared=order.shared) as rerun:
        made, asleep = None, dict[str, tuple[float, ...]]()
        if order.only is None:
            channel.send(Phase(name="pristine weights"))
            made = pristine(order, rerun)
        else:
            rerun.keeper = PartKeeper(order.only, audited.IS_RIGHT)
        if config.mode is not Mode.TRAIN:
            shown |= outputs(channel, order, rerun)
        places = rerun.places(order.passes) if config.mode is Mode.TRAIN else {}
        for name in order.passes if config.mode is Mode.TRAIN else ():
            channel.send(Phase(name=name))
            if name in places and order.every_step:
                shown[name] = rerun.samples(places[name], right, name)
            elif name in places:
                shown[name], shares = rerun.samples_and_asleep(places[name], right, name)
                asleep = {one: (*asleep.get(one, ()), share) for one, share in shares.items()}
            else:
                batch = 1 if name in PROBES else config.global_batch_size
                shown |= rerun.sketches(name, right, batch)
        if config.mode is Mode.TRAIN:
            channel.send(Phase(name="the declared format on the host"))
            shown |= honest_on_the_host(order, rerun)
        if made is not None:
            asleep |= asleep_on_the_host(order, rerun)
            announce.write(audited.PRISTINE, made.with_asleep(asleep))
        if rerun.keeper is not None:
            announce.part(audited.PART_REFERENCE, rerun.keeper, order.scratch_folder)
    announce.write_bytes(audited.REFERENCE, save(shown))
    shown.clear()
    # Last: the mode of products in the declared format stays set in the process.
    set_float32_products(config.precision)
    repeat(channel, order, rerun.inputs, announce, _Ticks(channel))
    channel.send(Done())


@dataclass(frozen=True)
class _Ticks:
    """Reports each repeated step or call, so that the process does not count as hanging."""

    channel: Channel

    def look(self, call: int) -> None:
        self.channel.send(Tick(index=call, ns=clock.now_ns()))

    def pause(self, step: int, row: Tensor, model: nn.Module, loss: Tensor) -> None:
        del row, model, loss
        self.look(step)


def recompute(channel: Channel, order: RecomputeOrder) -> None:
    """Write the reference gradients of replayed steps."""
    judged = f" and {len(order.judged)} judged" if order.judged else ""
    channel.send(Phase(name=f"{len(order.steps)} replayed{judged} steps without the plugin"))
    rows = save(recomputed(order))
    Announcer(channel, order.evidence_folder).write_bytes(audited.RECOMPUTED, rows)
    channel.send(Done())


def outputs(channel: Channel, order: ReferenceOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return the reference logits, and the logits of an honest run on the host (``host/...``)."""
    config, found = order.config, dict[str, Tensor]()
    again = outputs_of(rerun)
    for name in order.passes:
        channel.send(Phase(name=name))
        found |= again.logits(name, wide(config.precision, "cpu"))
    if config.precision.judged_as is None:
        return found
    channel.send(Phase(name="the declared format on the host"))
    honest = how(config.precision, "cpu")
    for name in {BRANCHES, LIVE} & set(order.passes):
        one = again.logits(name, honest)
        found |= {f"host/{key}": value for key, value in one.items()}
    return found


def asleep_on_the_host(order: ReferenceOrder, rerun: Rerun) -> dict[str, tuple[float, ...]]:
    """Return the share of each matrix's gradient that sleeps, per judged step, by one sequence.

    For judged steps whose reference a device computes. There the plugin's backend may be loaded,
    and could change the shares.
    """
    found: dict[str, tuple[float, ...]] = {}
    for name in map(audited.judged_pass, order.judged if not order.every_step else ()):
        if name in order.passes:
            continue
        for one, share in rerun.asleep_in_one(wide(order.config.precision, "cpu"), name).items():
            found[one] = (*found.get(one, ()), share)
    return found


def honest_on_the_host(order: ReferenceOrder, rerun: Rerun) -> dict[str, Tensor]:
    """Return the results of an honest run on the CPU in the declared format, as ``host/...``.

    The process of the honest run has loaded the vendor's backend: the honest figures of the device
    are compared with the figures of the CPU.
    """
    found: dict[str, Tensor] = {}
    if order.config.precision.judged_as is None:
        return found
    config, on_host = order.config, is_cpu(order.config.device)
    honest = how(config.precision, "cpu")
    batches = {BRANCHES: 1, LIVE: config.global_batch_size}
    if on_host and config.micro_batch_size > 1:
        # As many copies as in the device's probes: torch adds up the gradients of LayerNorm in BF16
        # on a CPU, and loses bits with each copy (docs/adr/0091).
        batches |= dict.fromkeys(PROBES, config.micro_batch_size)
    batches = {name: batches[name] for name in order.passes if name in batches}
    for name, batch in batches.items():
        found |= rerun.sketches(name, honest, batch)
    # Where rule L1 compares every step, one process makes the honest runs of judged steps: this
    # process if the device is the host, because no plugin can add to the errors here. With dropout
    # the steps of the device with other masks are the yardstick.
    needed = on_host or not order.every_step
    needed = needed and not getattr(rerun.inputs.shape, "dropout", 0.0)
    places = rerun.places(order.passes) if needed else {}
    for name, where in places.items():
        found[name] = rerun.samples(where, honest, name)
    named = {f"host/{key}": value for key, value in found.items()}
    return named | rerun.with_wide_loss("host", batches, places, "cpu")


def pristine(order: ReferenceOrder, rerun: Rerun) -> audited.PristineEvidence:
    """Return the expected digest of every parameter after post-processing, made from the seed."""
    shape = rerun.inputs.shape
    model = bare(shape)
    cast = getattr(torch, order.config.precision.stored_dtype)
    given = values_of(order.config, workloads.of(order.config))

    def one(item: tuple[str, Tensor]) -> audited.PristineDigest:
        name, empty = item
        dtype = order.stored_dtypes.get(name, order.config.precision.stored_dtype)
        if given is not None:
            value = given(name, empty.shape).to(cast)
        else:
            value = initial_value(name, empty.shape, order.config.seed, shape).to(cast)
        live = rerun.live(name)
        moved = None
        if live is not None and live.shape == value.shape:
            moved = largest_move(value, live)
        looks = bool(order.judged) and not order.every_step
        return audited.PristineDigest(
            name=name,
            shape=tuple(empty.shape),
            dtype=dtype,
            sha256=sha256_of(value.to(getattr(torch, dtype))),
            largest_move=moved,
            moves=tuple(largest_move(value, w) for w in rerun.judged(name)) if looks else (),
            idle=idle_shares(rerun, name, value) if looks else (),
        )

    # Each thread holds one matrix and its cast: the largest has 0.4 GB in float32.
    with ThreadPoolExecutor(max_workers=4) as pool:
        return audited.PristineEvidence(parameters=tuple(pool.map(one, model.named_parameters())))


def largest_move(first: Tensor, weights: Tensor) -> float:
    """Return the largest change of an element; NaN and infinity are the largest finite move."""
    largest = float((weights.float() - first.float()).abs().max())
    return largest if math.isfinite(largest) else sys.float_info.max


def idle_shares(rerun: Rerun, name: str, first: Tensor) -> tuple[float, ...]:
    """Return how much less of the parameter ``name`` needs work in judged steps than at first."""
    strength = float(first.float().square().mean().sqrt())
    if first.dim() not in (1, 2) or min(first.shape) < audited.LEAST_SIDE or not strength:
        return ()
    usual = idle_share(first, strength)
    shares = (idle_share(weights, strength) - usual for weights in rerun.judged(name))
    return tuple(max(0.0, one) if math.isfinite(one) else 0.0 for one in shares)


if __name__ == "__main__":
    serve(answer)
