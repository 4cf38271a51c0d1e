"""Which plugin, device, precision and batch size a run gets, and whether it fits into memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmb.config import (
    BF16,
    FP16,
    FP32,
    TF32,
    AuditMode,
    Mode,
    Parallelism,
    Place,
    Precision,
    Refused,
    RunConfig,
    RunRequest,
)
from llmb.errors import NotEnoughMemoryError, UnavailableError, UsageError
from llmb.parallel import checks
from llmb.supervision.choices import settle
from llmb.wire.messages import Offer
from llmb.workloads import LADDER, Workload, find
from llmb.workloads.arithmetic import inference_bytes, parameter_count, training_bytes
from llmb.workloads.checkpointing import recomputed_blocks

#: What a process needs besides the model: interpreter, torch, blocks the allocator keeps.
_PROCESS_BYTES = 2**30
#: With these two, the need is 0.1 to 0.8 GB above the measured peaks of llama-1.4b in BF16 on a
#: CPU: 12.7, 13.6, 14.8, 15.9, 16.3 and 17.3 GB at batch sizes 1, 2, 4, 5, 6 and 8.
_ACTIVATION_SLACK = 1.3
#: Elements of a weight that are widened together (``llmb.plugin.builtin.wide.AT_ONCE``).
_WIDENED_AT_ONCE = 2**24
_ALONE = Parallelism()
_COMMON_FORMATS = (*(p.name for p in (FP32, TF32, FP16, BF16)), "FP8")


def is_cpu(device: str) -> bool:
    """Tell whether ``device`` is the host processor."""
    return device.partition(":")[0] == "cpu"


def reason_of(offer: Offer) -> str:
    """Return why ``offer`` is none, without the plugin's name in front."""
    reason = offer.reason or "it said nothing"
    return reason.removeprefix(f"plugin {offer.plugin!r}").lstrip(": ")


def best_offer(offers: Sequence[Offer], request: RunRequest) -> Offer:
    """Return the offer to run: an accelerator before the CPU, a vendor's plugin before our own.

    Raises:
        UnavailableError: no plugin serves the request; the message says why for each.
    """
    available = [offer for offer in offers if offer.available]
    if not available:
        if len(offers) == 1:
            raise UnavailableError(f"plugin {offers[0].plugin!r}: {reason_of(offers[0])}")
        reasons = _reasons(offers)
        if request.device is None:
            raise UnavailableError(f"no installed plugin works here ({reasons}); see llmb doctor")
        raise UnavailableError(
            f"no installed plugin serves device {request.device!r} ({reasons}); "
            "choose another device, or install the package that serves it (llmb-<name>)"
        )

    def rank(offer: Offer) -> tuple[bool, bool, str]:
        built_in = offer.distribution == "llmb"
        # On the host's processor our own plugin is the plain choice; elsewhere the vendor's is.
        return is_cpu(offer.device), built_in != is_cpu(offer.device), offer.plugin

    return min(available, key=rank)


def _reasons(offers: Sequence[Offer]) -> str:
    """Return each reason once, after the plugins that gave it."""
    plugins: dict[str, list[str]] = {}
    for offer in offers:
        plugins.setdefault(reason_of(offer), []).append(offer.plugin)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in plugins.items())


def not_offered(offer: Offer) -> tuple[Refused, ...]:
    """Return the common formats that ``offer`` does not have, and all it refuses, with reasons."""
    offered = {precision.name for precision in offer.precisions}
    plain = f"plugin {offer.plugin} does not offer it on {offer.device}"
    reasons = dict.fromkeys(_COMMON_FORMATS, plain)
    reasons |= {refused.name: refused.reason for refused in offer.refused}
    return tuple(Refused(name=n, reason=why) for n, why in reasons.items() if n not in offered)


def resolve(
    offer: Offer, request: RunRequest, workload: Workload, place: Place | None = None
) -> RunConfig:
    """Return the run in full; a batch size still to be searched stands at 1.

    With ``place`` it is done by ranks, of which those of a host may share its memory.

    Raises:
        UsageError: a format nobody knows.
        UnavailableError: a format this device does not compute in.
        NotEnoughMemoryError: it does not fit.
    """
    here = sharing(place, offer)
    precision = _precision(offer, request, workload, here)
    mixed = _is_mixed(request, workload, precision)
    if mixed:
        precision = precision.model_copy(update={"master_weights": True})
    chosen = settle(request, workload, precision)
    parts = request.accumulate
    batch_size = request.batch_size if isinstance(request.batch_size, int) else parts
    if batch_size % parts:
        raise UsageError(
            f"--batch-size {batch_size} cannot be accumulated in {parts} equal parts: "
            f"use a multiple of {parts}, or --micro-batch-size"
        )
    config = RunConfig(
        workload=request.workload,
        definition=request.definition,
        plugin=offer.plugin,
        plugin_options=offer.options,
        device=offer.device,
        precision=precision,
        batch_size=batch_size,
        accumulate=parts,
        mixed_precision=mixed,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        repeats=request.repeats,
        parallelism=request.parallelism,
        shape_overrides=request.shape_overrides,
        audit=request.audit or _usual_audit(request, chosen["mode"], chosen["timed_steps"]),
        **chosen,
    )
    checks.check_precision(config, workload.shape)
    load = Load.of(config, workload, here)
    check_memory(offer, workload, precision, batch_size // parts, load)
    return config


def at(place: Place, offer: Offer, config: RunConfig) -> RunConfig:
    """Return ``config`` on the device that ``place`` has on its host.

    Raises:
        UnavailableError: there are fewer devices than ranks.
    """
    count, local = len(offer.devices), place.local_rank
    if ":" in config.device or (count <= 1 and torchs_cpu(config.device)):
        return config
    if local >= count:
        raise UnavailableError(
            f"rank {place.rank} is number {local} on its host, which has {count} {config.device} "
            "devices: start one rank a device"
        )
    return config.model_copy(update={"device": f"{config.device}:{local}"})


def sharing(place: Place | None, offer: Offer) -> int:
    """Return how many ranks there are in the memory that ``offer`` speaks of."""
    one_device = is_cpu(offer.device) or ":" in offer.device
    return place.local_world_size if place is not None and one_device else 1


def torchs_cpu(device: str) -> bool:
    """Tell whether ``device`` is the processor, which ranks share."""
    return device.partition(":")[0] == "cpu"


def _is_mixed(request: RunRequest, workload: Workload, precision: Precision) -> bool:
    """Tell whether forward passes run under autocast over float32 weights."""
    possible = precision.name in (BF16.name, FP16.name) and not precision.master_weights
    if request.executor == "thunder":  # under autocast its losses come back in 16 bits
        possible = False
    if request.mixed_precision is None:
        trains = (request.mode or workload.modes[0]) is Mode.TRAIN
        return trains and possible and workload.recipe.mixed_precision
    if request.mixed_precision and not possible:
        raise UsageError(
            f"--mixed-precision: not with {precision.name} and executor {request.executor}; use "
            "--precision BF16 or FP16, and eager or inductor"
        )
    return request.mixed_precision


def _usual_audit(request: RunRequest, mode: Mode, steps: int) -> AuditMode:
    debug = request.shape_overrides or request.definition or steps < mode.official_steps
    return AuditMode.QUICK if debug else AuditMode.FULL


def wants_search(offer: Offer, requested: int | Literal["auto"] | None) -> bool:
    """Tell whether the batch size is to be searched: by default on accelerators only."""
    return requested == "auto" or (requested is None and not is_cpu(offer.device))


@dataclass(frozen=True)
class Load:
    """What a step is made of, as far as memory is concerned."""

    mode: Mode = Mode.TRAIN
    #: Blocks that keep nothing but their input for the backward pass.
    recomputed: int = 0
    #: Positions of the key-value cache, and of the logits that are kept, in mode generate.
    cached: int = 0
    generated: int = 0
    #: How ranks share a step, in how many parts each takes its own, and how many of them have the
    #: same memory.
    parallelism: Parallelism = _ALONE
    accumulate: int = 1
    here: int = 1
    audited: bool = True

    @classmethod
    def of(cls, config: RunConfig, workload: Workload, here: int = 1) -> Load:
        """Return that of ``config``, with ``here`` ranks in one memory."""
        layers, new = workload.shape.num_hidden_layers, config.new_tokens or 0
        return cls(
            config.mode,
            recomputed=recomputed_blocks(config.sac_freq, layers),
            cached=(config.prompt_length or 0) + new,
            generated=new,
            parallelism=config.parallelism,
            accumulate=config.accumulate,
            here=here,
            audited=config.audit is not AuditMode.OFF,
        )


def needed_bytes(
    workload: Workload, precision: Precision, batch_size: int, load: Load | None = None
) -> int:
    """Return what each worker needs in bytes, with slack."""
    load = load or Load()
    weights = precision.bytes_per_value * parameter_count(workload.shape)
    if load.mode is not Mode.TRAIN:
        cache, generated = batch_size * load.cached, batch_size * load.generated
        own = inference_bytes(workload.shape, precision, batch_size, cache, generated)
        return weights + weights // 4 + int(own * _ACTIVATION_SLACK) + _PROCESS_BYTES
    moments = workload.recipe.optimizer.moments
    state = (2 + moments) * weights  # weights, gradients and moments
    activations = training_bytes(
        workload.shape, precision, batch_size, moments=moments, recomputed=load.recomputed
    )
    # Every worker sets the memory for one copy of the weights aside (rule G1); after the window the
    # probes edit and sketch the largest (at batch size 1: 16.7 GB of llama-1.4b, 15.6 before).
    audit = weights + weights // 4 if load.audited else 0
    mesh = load.parallelism
    held = (state + audit) // (mesh.dp_shard * mesh.tp * mesh.pp)
    held += _of_ranks(weights, workload.shape.num_hidden_layers, load)
    # Every rank makes the whole model, and keeps its own part.
    held = max(held, weights)
    own = int((activations - state) * _ACTIVATION_SLACK * _tensor_share(mesh))
    own += _of_wide_products(workload, batch_size) if precision.products is not None else 0
    return held + own + _PROCESS_BYTES


def _of_wide_products(workload: Workload, batch_size: int) -> int:
    """Return the bytes that float32 products of 16-bit values take besides a plain step's.

    Attention keeps its queries, keys, values and result in float32; a part of a weight and the
    product's operands are there twice.
    """
    shape, tokens = workload.shape, batch_size * workload.shape.sequence_length
    attention = 4 * 4 * tokens * shape.hidden_size * shape.num_hidden_layers
    widest = max(shape.vocab_size, shape.intermediate_size, shape.hidden_size)
    return attention + 2 * 4 * (_WIDENED_AT_ONCE + tokens * widest)


def _of_ranks(weights: int, layers: int, load: Load) -> int:
    """Return the bytes of what is held only because ranks share a step."""
    mesh = load.parallelism
    mine = weights // (mesh.tp * mesh.pp)
    if mesh.dp_shard == 1:
        return mine if mesh.dp_replicate > 1 else 0  # DDP's buckets: the gradients once more
    # Of blocks that are given up again, the one at work and the next one are there.
    gathered = min(mine, 2 * mine // layers) if mesh.reshard_after_forward else mine
    # Gradients are shared after the last part: until then each rank has all of its own.
    return gathered + (mine if load.accumulate > 1 else 0)


def _tensor_share(mesh: Parallelism) -> float:
    """Return a rank's part of the activations where ranks share each matrix.

    Of the 34 bytes a token and channel that a block keeps, 24 are shared, and with the sequence all
    (Korthikanti et al. 2022, arXiv 2205.05198, equations 2 and 4).
    """
    return 1 / mesh.tp if mesh.sequence_parallel else (10 + 24 / mesh.tp) / 34


def check_memory(
    offer: Offer,
    workload: Workload,
    precision: Precision,
    batch_size: int,
    load: Load | None = None,
) -> None:
    """Refuse a run that cannot fit, before anything is allocated.

    Raises:
        NotEnoughMemoryError: says need, have, and what would fit.
    """
    have, load = offer.available_memory_bytes, load or Load()
    need = load.here * needed_bytes(workload, precision, batch_size, load)
    if have is None or need <= have:
        return
    ranks = f"{load.here} ranks of " if load.here > 1 else ""
    raise NotEnoughMemoryError(
        f"{ranks}{workload.name} in {precision.name} at batch size {batch_size} "
        f"{'need' if ranks else 'needs'} about {need / 1e9:.1f} GB, {offer.device} has "
        f"{have / 1e9:.1f} GB free: {_what_fits(offer, workload, precision, have, load)}"
    )


def _what_fits(
    offer: Offer, workload: Workload, precision: Precision, have: int, load: Load
) -> str:
    def needed(how: Precision, size: int) -> int:
        return load.here * needed_bytes(workload, how, size, load)

    one, two = (needed(precision, size) for size in (1, 2))
    if one <= have:
        return f"use --batch-size {1 + (have - one) // (two - one)}"
    for other in offer.precisions:
        if not other.is_slow and other.name != precision.name and needed(other, 1) <= have:
            need = needed(other, 1)
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


def usual(offer: Offer, request: RunRequest) -> tuple[Precision, ...]:
    """Return the formats a run may take: the one asked for, or all that are not slow.

    Raises:
        UsageError: a format nobody knows.
        UnavailableError: a format that is not offered, or none is offered at all.
    """
    if request.precision is not None:
        return (_named(offer, request.precision),)
    found = tuple(precision for precision in offer.precisions if not precision.is_slow)
    if not found:
        raise UnavailableError(f"plugin {offer.plugin!r} offers no native precision here")
    return found


def _named(offer: Offer, name: str) -> Precision:
    offered, wanted = ", ".join(p.name for p in offer.precisions) or "none", name.upper()
    for precision in offer.precisions:
        if precision.name.upper() == wanted:
            return precision
    for refused in offer.refused:
        if refused.name.upper() == wanted:
            raise UnavailableError(
                f"--precision {wanted}: plugin {offer.plugin!r} does not offer it on "
                f"{offer.device}: {refused.reason} (it offers {offered})"
            )
    if wanted in _COMMON_FORMATS:
        raise UnavailableError(
            f"--precision {wanted}: plugin {offer.plugin!r} does not offer it on "
            f"{offer.device} (it offers {offered})"
        )
    raise UsageError(f"--precision {name}: unknown (choose one of {offered})")


def _precision(offer: Offer, request: RunRequest, workload: Workload, here: int) -> Precision:
    """Return the first of the usual formats that fits, or the first of all.

    In that none fits: the memory check says so with figures.
    """
    formats, have = usual(offer, request), offer.available_memory_bytes
    mode = request.mode or workload.modes[0]
    load = Load(mode, parallelism=request.parallelism, accumulate=request.accumulate, here=here)
    for precision in formats:
        if have is None or here * needed_bytes(workload, precision, 1, load) <= have:
            return precision
    return formats[0]
