"""The process that computes what is right: the reference on the CPU, in a wider format, no plugin.

It runs once the worker has gone, so no reference value was ever where vendor code could see it.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from llmb import workloads
from llmb.errors import RunFailedError
from llmb.notebook import Announcer
from llmb.observe.passes import STEP
from llmb.observe.probes import PROBES
from llmb.observe.retake import Retake, wide
from llmb.observe.weights import sha256_of
from llmb.observe.weights_file import file_digest
from llmb.records import audited
from llmb.reference.llama import Llama, initial_value
from llmb.reference.shapes import LlamaShape
from llmb.wire.channel import Channel, serve
from llmb.wire.messages import Done, ReferenceOrder


def verify(channel: Channel) -> None:
    """Answer one order."""
    order = channel.expect(ReferenceOrder)
    config = order.config
    announce = Announcer(channel, order.evidence_folder)
    shape = workloads.find(config.workload, config.shape_overrides).shape
    dtype, device = wide(config.precision), "cpu"
    shown: dict[str, Tensor] = {}
    with Retake(
        config, shape, order.seed, order.token_seeds, Path(order.scratch_folder), order.digests
    ) as retake:
        announce.write(audited.PRISTINE, pristine(order, shape, retake))
        for name in order.passes:
            if name == STEP:
                shown[STEP] = retake.samples(places(order), dtype, device)
            else:
                batch = 1 if name in PROBES else config.batch_size
                shown |= retake.sketches(name, dtype, device, batch)
    announce.write_bytes(audited.REFERENCE, save(shown))
    channel.send(Done())


def places(order: ReferenceOrder) -> Tensor:
    """Return which elements of the gradients the worker has shown of its audited step.

    Raises:
        RunFailedError: the file is not the one the worker wrote.
    """
    path = Path(order.evidence_folder) / audited.STEP_VALUES
    if file_digest(path) != order.digests[audited.STEP_VALUES]:
        raise RunFailedError(f"{path.name} is not what the worker wrote: it was altered")
    return load_file(path)[f"{order.step}/where"].long()


def pristine(order: ReferenceOrder, shape: LlamaShape, retake: Retake) -> audited.PristineEvidence:
    """Return what every parameter must have been after post-processing, made from the seed."""
    with torch.device("meta"):
        model = Llama(shape)
    cast = getattr(torch, order.config.precision.stored_dtype)

    def one(item: tuple[str, Tensor]) -> audited.PristineDigest:
        name, empty = item
        dtype = order.stored_dtypes.get(name, order.config.precision.stored_dtype)
        value = initial_value(name, empty.shape, order.config.seed, shape).to(cast)
        live = retake.live(name)
        moved = None
        if live is not None and live.shape == value.shape:
            moved = float((live.float() - value.float()).abs().max())
        return audited.PristineDigest(
            name=name,
            shape=tuple(empty.shape),
            dtype=dtype,
            sha256=sha256_of(value.to(getattr(torch, dtype))),
            largest_move=moved if moved is not None and math.isfinite(moved) else None,
        )

    # Each thread holds one matrix and its cast: the largest has 0.4 GB in float32.
    with ThreadPoolExecutor(max_workers=4) as pool:
        return audited.PristineEvidence(parameters=tuple(pool.map(one, model.named_parameters())))


if __name__ == "__main__":
    serve(verify)
