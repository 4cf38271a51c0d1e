"""Memory needed by a run, estimated before any allocation and compared with the free memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmb.config import AuditMode, Mode, Parallelism, Precision, RunConfig, is_cpu
from llmb.errors import NotEnoughMemoryError
from llmb.records import draws
from llmb.wire.messages import Offer
from llmb.workloads import LADDER, Workload, find
from llmb.workloads.arithmetic import inference_bytes, parameter_count
from llmb.workloads.checkpointing import OP, recomputed_blocks
from llmb.workloads.memory import (
    MemoryJob,
    activations_at_loss,
    held_memory,
    peak_memory,
    recipe_of,
)

#: Bytes of a process without the model: interpreter, torch, blocks kept by the allocator.
_PROCESS_BYTES = 2**30
#: On a CPU a process keeps freed memory. A step takes 2.1 times the bytes of the activations; with
#: few activations, a step takes 1.4 times the activations, and the gradients. Examples of peaks
#: measured without an audit, in GB, with the estimate of ``needed_bytes`` in parentheses:
#: llama-1.4b in BF16 at batch sizes 1, 5 and 8: 12.7 (13.2), 15.9 (16.0), 17.3 (18.0);
#: llama-128m in BF16 at 16: 7.1 (7.2); llama-45m in FP32 at 32: 12.5 (14.2);
#: nemo-bert-base in FP32 at 8: 21.4 (22.9); gpt2-125m in mixed precision at 4: 8.3 (11.2).
_HOST_SLACK, _HOST_FEW = 2.1, 1.4
#: A device's allocator gives unused blocks back before an allocation fails: little memory is lost
#: between blocks. The value is chosen; no device has been measured yet.
_DEVICE_SLACK = 1.05
_INFERENCE_SLACK = 1.3
#: Additional memory of the optimizer's step and of the audit's reading, as a share of the
#: gradients' bytes. The value is chosen: llama-1.4b in BF16 at batch size 1 is estimated at 17.0 GB
#: on a device, and an audited run on a CPU took 16.7 GB. No device has been measured yet.
_READING = 0.3
#: Elements of a weight widened at the same time (``llmb.plugin.builtin.wide.AT_ONCE``).
_WIDENED_AT_ONCE = 2**24
_ALONE = Parallelism()


@dataclass(frozen=True)
class Load:
    """The properties of a step with an effect on memory, such as audited or accumulated."""

    mode: Mode = Mode.TRAIN
    #: Number of blocks that keep only the block's input for the backward pass.
    recomputed: int = 0
    #: Blocks keep their products and recompute everything else (``--sac-freq op``).
    by_operation: bool = False
    #: In mode generate: positions of the key-value cache, and positions of the kept logits.
    cached: int = 0
    generated: int = 0
    #: Parallelism of the ranks, number of micro-batches of a step, and number of ranks in the same
    #: memory.
    parallelism: Parallelism = _ALONE
    accumulate: int = 1
    here: int = 1
    audited: bool = True
    #: Whether the memory is host memory: a process on a CPU keeps freed memory.
    host: bool = True

    @classmethod
    def of(cls, config: RunConfig, workload: Workload, here: int = 1) -> Load:
        """Return the load of ``config``, with ``here`` ranks in the same memory."""
        layers, new = workload.shape.num_hidden_layers, config.new_tokens or 0
        return cls(
            config.mode,
            recomputed=recomputed_blocks(config.sac_freq, layers),
            by_operation=config.sac_freq == OP,
            cached=(config.prompt_length or 0) + new,
            generated=new,
            parallelism=config.parallelism,
            accumulate=config.accumulate,
            here=here,
            audited=config.audit is not AuditMode.OFF,
            host=is_cpu(config.device),
        )

    def job(self, workload: Workload, precision: Precision, batch_size: int) -> MemoryJob:
        """Return the step for the memory model; ``batch_size``: sequences of a micro-batch."""
        return MemoryJob(
            workload.shape,
            recipe_of(precision),
            micro_batch=batch_size,
            micro_batches=self.accumulate,
            parallelism=self.parallelism,
            recomputed=self.recomputed,
            recompute="op" if self.by_operation else "none",
            moments=workload.recipe.optimizer.moments,
            scores=self.host,
        )


def why_no_ledger(config: RunConfig, workload: Workload) -> str | None:
    """Return why rule L1 will replay no step of ``config``, None if rule L1 will."""
    return draws.why_no_ledger(
        config.mode.value,
        config.precision,
        mesh=config.parallelism,
        state=draws.state_bytes(
            parameter_count(workload.shape), config.precision, workload.recipe.optimizer
        ),
    )


def needed_bytes(
    workload: Workload, precision: Precision, batch_size: int, load: Load | None = None
) -> int:
    """Return the memory that each worker needs, in bytes, with slack.

    Example: 13.2 GB for llama-1.4b in BF16 at batch size 1 on a CPU, without an audit.
    """
    load = load or Load()
    weights = precision.bytes_per_value * parameter_count(workload.shape)
    if load.mode is not Mode.TRAIN:
        cache, generated = batch_size * load.cached, batch_size * load.generated
        own = inference_bytes(workload.shape, precision, batch_size, cache, generated)
        return weights + weights // 4 + int(own * _INFERENCE_SLACK) + _PROCESS_BYTES
    job = load.job(workload, precision, batch_size)
    peak, held = peak_memory(job), held_memory(job)
    # After the window, the probes edit and sketch the largest weights (at batch size 1: 1.1 GB of
    # llama-1.4b).
    audit = weights // 4 if load.audited else 0
    mesh = load.parallelism
    audit //= mesh.dp_shard * mesh.tp * mesh.pp
    if load.host:
        kept = activations_at_loss(job)
        freed = max(_HOST_SLACK * kept - held.gradients, _HOST_FEW * kept)
        # Gathered weights, and gradients that ranks have not shared yet.
        more = (peak.buffers - held.buffers, peak.gradients - held.gradients)
        most = held.total + sum(max(0.0, part) for part in more) + freed
    else:
        slack = (_DEVICE_SLACK - 1) * (peak.activations + peak.logits)
        most = max(peak.total + slack, held.total + _READING * held.gradients)
    # Every rank first creates the full model, and then keeps the rank's own shard.
    most = max(most + audit, weights)
    widened = _of_wide_products(workload, batch_size) if precision.products is not None else 0
    return int(most) + widened + _PROCESS_BYTES


def _of_wide_products(workload: Workload, batch_size: int) -> int:
    """Return the additional bytes of a step with float32 products of 16-bit values.

    Attention keeps queries, keys, values and result in float32. A part of a weight and the
    product's operands exist twice.
    """
    shape, tokens = workload.shape, batch_size * workload.shape.sequence_length
    attention = 4 * 4 * tokens * shape.hidden_size * shape.num_hidden_layers
    widest = max(shape.vocab_size, shape.intermediate_size, shape.hidden_size)
    return attention + 2 * 4 * (_WIDENED_AT_ONCE + tokens * widest)


def check_memory(
    offer: Offer,
    workload: Workload,
    precision: Precision,
    batch_size: int,
    load: Load | None = None,
) -> None:
    """Refuse a run that cannot fit, before any allocation.

    Raises:
        NotEnoughMemoryError: the run needs more; the message has need, free memory and a remedy.
    """
    said = shortage(offer, workload, precision, batch_size, load)
    if said is not None:
        raise NotEnoughMemoryError(said)


def shortage(
    offer: Offer,
    workload: Workload,
    precision: Precision,
    batch_size: int,
    load: Load | None = None,
) -> str | None:
    """Return a line with need, free memory and a remedy; None if the run fits, or if unknown."""
    have, load = offer.available_memory_bytes, load or Load()
    need = load.here * needed_bytes(workload, precision, batch_size, load)
    if have is None or need <= have:
        return None
    ranks = f"{load.here} ranks of " if load.here > 1 else ""
    return (
        f"{ranks}{workload.name} in {precision.name} at batch size {batch_size} "
        f"{'need' if ranks else 'needs'} about {need / 1e9:.1f} GB, {offer.device} has "
        f"{have / 1e9:.1f} GB free: {_what_fits(offer, workload, precision, have, load)}"
    )


def _what_fits(
    offer: Offer, workload: Workload, precision: Precision, have: int, load: Load
) -> str:
    def needed(how: Precision, size: int) -> int:
        return load.here * needed_bytes(workload, how, size, load)

    if needed(precision, 1) <= have:
        return f"use --batch-size {_largest(lambda size: needed(precision, size) <= have)}"
    own = next((one for one in offer.precisions if one.name == precision.name), precision)
    mixed = precision.master_weights and not own.master_weights
    if mixed and needed(own, 1) <= have:
        return f"use --no-mixed-precision ({needed(own, 1) / 1e9:.1f} GB at batch size 1)"
    for other in offer.precisions:
        # A format of the same kind would be mixed, too. Example: FP16 for BF16.
        run = (
            other.model_copy(update={"master_weights": True})
            if mixed and other.bits == 16
            else other
        )
        if not other.is_slow and other.name != precision.name and needed(run, 1) <= have:
            need = needed(run, 1)
            return f"use --precision {other.name} ({need / 1e9:.1f} GB at batch size 1)"
    fewer = "start fewer ranks here, " if load.here > 1 else ""
    quick = [other for other in offer.precisions if not other.is_slow]
    sizes = [
        (name, other, load.here * needed_bytes(find(name, {}), other, 1, load))
        for name in LADDER
        for other in quick
    ]
    for name, other, need in sizes:
        if need <= have and load.mode is Mode.TRAIN:
            return f"{fewer}use --workload {name} ({need / 1e9:.1f} GB in {other.name})"
    smallest, narrowest, least = min(sizes, key=lambda size: size[2], default=("", precision, 0))
    return (
        f"no precision fits, and of the official sizes not even {smallest}, which needs "
        f"{least / 1e9:.1f} GB in {narrowest.name}; {fewer}try --preset debug, or free memory"
    )


def _largest(fits: Callable[[int], bool]) -> int:
    """Return the largest size that ``fits``; size 1 fits, and a larger size never fits better."""
    size = 1
    while fits(2 * size):
        size *= 2
    step = size // 2
    while step:
        size += step if fits(size + step) else 0
        step //= 2
    return size
