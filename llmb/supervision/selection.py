"""Selects plugin, device, precision and batch size of a run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

from llmb.config import (
    BF16,
    FP16,
    FP32,
    TF32,
    AuditMode,
    Mode,
    Precision,
    RankAddress,
    Refused,
    RunConfig,
    RunRequest,
    is_cpu,
)
from llmb.errors import UnavailableError, UsageError, did_you_mean
from llmb.formats import KNOWN
from llmb.parallel import checks
from llmb.supervision import memory
from llmb.supervision.choices import settle
from llmb.wire.messages import Offer
from llmb.workloads import Workload

#: The formats that users commonly ask for. A plugin without a common format gets a stated reason.
_COMMON_FORMATS = (*(p.name for p in (FP32, TF32, FP16, BF16)), "FP8")


def reason_of(offer: Offer) -> str:
    """Return the reason for which ``offer`` is not available, without the plugin's name."""
    reason = offer.reason or "it said nothing"
    return reason.removeprefix(f"plugin {offer.plugin!r}").lstrip(": ")


def best_offer(offers: Sequence[Offer], request: RunRequest) -> Offer:
    """Return the offer to run: accelerators before the CPU, then the usual plugin of the device.

    On an accelerator a vendor's plugin comes before llmb's own plugin. On the CPU, llmb's own
    plugin comes first.

    Raises:
        UnavailableError: no plugin serves the request; the message has a reason for each plugin.
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
        # On the CPU llmb's own plugin is preferred; on an accelerator, the vendor's plugin.
        return is_cpu(offer.device), built_in != is_cpu(offer.device), offer.plugin

    return min(available, key=rank)


def _reasons(offers: Sequence[Offer]) -> str:
    """Return each reason once, after the names of the plugins with the same reason.

    Example: "plugin-a, plugin-b: no device".
    """
    plugins: dict[str, list[str]] = {}
    for offer in offers:
        plugins.setdefault(reason_of(offer), []).append(offer.plugin)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in plugins.items())


def not_offered(offer: Offer) -> tuple[Refused, ...]:
    """Return the common formats missing in ``offer``, and all refused formats, with reasons."""
    offered = {precision.name for precision in offer.precisions}
    plain = f"plugin {offer.plugin} does not offer it on {offer.device}"
    reasons = dict.fromkeys(_COMMON_FORMATS, plain)
    reasons |= {refused.name: refused.reason for refused in offer.refused}
    return tuple(Refused(name=n, reason=why) for n, why in reasons.items() if n not in offered)


def resolve(
    offer: Offer,
    request: RunRequest,
    workload: Workload,
    place: RankAddress | None = None,
    *,
    tries: bool = False,
) -> RunConfig:
    """Return the full configuration; a batch size to be searched later is one per micro-batch.

    With ``place``, the run has several ranks, and the ranks of a host may share the host's memory.
    With ``tries``, a batch size named in the request is refused on a device only if the model's
    state alone does not fit. A device out of memory ends with an error message. A host out of
    memory may end other programs first: on a CPU the estimate always decides.

    Example: with ``accumulate=4``, a batch size to be searched is set to 4.

    Raises:
        UsageError: an unknown format.
        UnavailableError: a format that this device does not compute in.
        NotEnoughMemoryError: the run does not fit.
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
    load = memory.Load.of(config, workload, here)
    micro_batch = batch_size // parts
    named = tries and isinstance(request.batch_size, int) and not load.host
    if not named or memory.shortage(offer, workload, precision, 0, load):  # 0: of the state alone
        memory.check_memory(offer, workload, precision, micro_batch, load)
    return config


def doubts(
    offer: Offer, config: RunConfig, workload: Workload, place: RankAddress | None = None
) -> tuple[str, ...]:
    """Return the reason for which ``config`` may not fit into the device's memory, if any.

    ``resolve`` may let a run try without enough memory by estimate (``tries``).
    """
    load = memory.Load.of(config, workload, sharing(place, offer))
    said = memory.shortage(offer, workload, config.precision, config.micro_batch_size, load)
    return () if said is None else (f"tried because --batch-size names it: {said}",)


def at(place: RankAddress, offer: Offer, config: RunConfig) -> RunConfig:
    """Return ``config`` with the device of rank ``place``, for example ``cuda:3`` for local rank 3.

    Raises:
        UnavailableError: the host has fewer devices than ranks.
    """
    count, local = len(offer.devices), place.local_rank
    if ":" in config.device or (count <= 1 and is_cpu(config.device)):
        return config
    if local >= count:
        raise UnavailableError(
            f"rank {place.rank} is number {local} on its host, which has {count} {config.device} "
            "devices: start one rank a device"
        )
    return config.model_copy(update={"device": f"{config.device}:{local}"})


def sharing(place: RankAddress | None, offer: Offer) -> int:
    """Return the number of ranks that share the memory named in ``offer``."""
    one_device = is_cpu(offer.device) or ":" in offer.device
    return place.local_world_size if place is not None and one_device else 1


def _is_mixed(request: RunRequest, workload: Workload, precision: Precision) -> bool:
    """Tell whether forward passes run under autocast over float32 weights."""
    possible = precision.name in (BF16.name, FP16.name) and not precision.master_weights
    if request.executor == "thunder":  # thunder's losses are 16-bit under autocast
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
    """Tell whether to search the batch size; by default only accelerators get a search."""
    return requested == "auto" or (requested is None and not is_cpu(offer.device))


def usual(offer: Offer, request: RunRequest) -> tuple[Precision, ...]:
    """Return the formats that a run may take: the requested format, or all formats not slow.

    Raises:
        UsageError: an unknown format.
        UnavailableError: a format that is not offered, or no format is offered at all.
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
    if any(wanted == known.name for known in KNOWN):
        raise UnavailableError(
            f"--precision {wanted}: plugin {offer.plugin!r} does not offer it on "
            f"{offer.device} (it offers {offered})"
        )
    near = did_you_mean(name, (precision.name for precision in offer.precisions))
    raise UsageError(f"--precision {name}: unknown (choose one of {offered}){near}")


def _precision(offer: Offer, request: RunRequest, workload: Workload, here: int) -> Precision:
    """Return the first of the usual formats that fits, or the first usual format if none fits.

    In the second case the memory check fails later, with figures in the message.
    """
    formats, have = usual(offer, request), offer.available_memory_bytes
    mode = request.mode or workload.modes[0]
    load = memory.Load(
        mode,
        parallelism=request.parallelism,
        accumulate=request.accumulate,
        here=here,
        host=is_cpu(offer.device),
    )
    for precision in formats:
        if have is None or here * memory.needed_bytes(workload, precision, 1, load) <= have:
            return precision
    return formats[0]
