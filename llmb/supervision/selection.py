"""Which plugin, device, precision and batch size a run gets, and whether it fits into memory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

from llmb.config import (
    BF16,
    FP16,
    FP32,
    OFFICIAL_TIMED_STEPS,
    TF32,
    AuditMode,
    Precision,
    RunConfig,
    RunRequest,
)
from llmb.errors import NotEnoughMemoryError, UnavailableError, UsageError
from llmb.wire.messages import Offer
from llmb.workloads import Workload
from llmb.workloads.arithmetic import parameter_count, training_bytes

#: What a process needs besides the model: interpreter, torch, blocks the allocator keeps.
_PROCESS_BYTES = 2**30
#: With these two, the need is 0.1 to 0.8 GB above the measured peaks of llama-1.4b in BF16 on a
#: CPU: 12.7, 13.6, 14.8, 15.9, 16.3 and 17.3 GB at batch sizes 1, 2, 4, 5, 6 and 8.
_ACTIVATION_SLACK = 1.3
_COMMON_FORMATS = {p.name for p in (FP32, TF32, FP16, BF16)} | {"FP8"}


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


def resolve(offer: Offer, request: RunRequest, workload: Workload) -> RunConfig:
    """Return the run in full; a batch size still to be searched stands at 1.

    Raises:
        UsageError: a format nobody knows.
        UnavailableError: a format this device does not compute in.
        NotEnoughMemoryError: it does not fit.
    """
    precision = _precision(offer, request, workload)
    mixed = _is_mixed(request, workload, precision)
    if mixed:
        precision = precision.model_copy(update={"master_weights": True})
    parts = request.accumulate
    batch_size = request.batch_size if isinstance(request.batch_size, int) else parts
    if batch_size % parts:
        raise UsageError(
            f"--batch-size {batch_size} cannot be accumulated in {parts} equal parts: "
            f"use a multiple of {parts}, or --micro-batch-size"
        )
    check_memory(offer, workload, precision, batch_size // parts)
    return RunConfig(
        workload=request.workload,
        definition=request.definition,
        mode=request.mode,
        plugin=offer.plugin,
        plugin_options=offer.options,
        device=offer.device,
        precision=precision,
        batch_size=batch_size,
        accumulate=parts,
        mixed_precision=mixed,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        warmup_steps=request.warmup_steps or 1,
        timed_steps=request.timed_steps,
        repeats=request.repeats,
        shape_overrides=request.shape_overrides,
        audit=request.audit or _usual_audit(request),
    )


def _is_mixed(request: RunRequest, workload: Workload, precision: Precision) -> bool:
    """Tell whether forward passes run under autocast over float32 weights."""
    possible = precision.name == BF16.name and not precision.master_weights
    if request.mixed_precision is None:
        return possible and workload.recipe.mixed_precision
    if request.mixed_precision and not possible:
        raise UsageError(
            f"--mixed-precision: not with {precision.name}, use --precision BF16 (FP16 would need "
            "a gradient scaler, which llmb has not yet)"
        )
    return request.mixed_precision


def _usual_audit(request: RunRequest) -> AuditMode:
    debug = (
        request.shape_overrides or request.definition or request.timed_steps < OFFICIAL_TIMED_STEPS
    )
    return AuditMode.QUICK if debug else AuditMode.FULL


def wants_search(offer: Offer, requested: int | Literal["auto"] | None) -> bool:
    """Tell whether the batch size is to be searched: by default on accelerators only."""
    return requested == "auto" or (requested is None and not is_cpu(offer.device))


def needed_bytes(workload: Workload, precision: Precision, batch_size: int) -> int:
    """Return what a worker needs in bytes, with slack."""
    weights = precision.bytes_per_value * parameter_count(workload.shape)
    state = 4 * weights  # weights, gradients and two moments
    activations = training_bytes(workload.shape, precision, batch_size) - state
    # Every worker sets the memory for one copy of the weights aside (rule G1); after the window the
    # probes edit and sketch the largest (at batch size 1: 16.7 GB of llama-1.4b, 15.6 before).
    audit = weights + weights // 4
    return state + audit + int(activations * _ACTIVATION_SLACK) + _PROCESS_BYTES


def check_memory(offer: Offer, workload: Workload, precision: Precision, batch_size: int) -> None:
    """Refuse a run that cannot fit, before anything is allocated.

    Raises:
        NotEnoughMemoryError: says need, have, and what would fit.
    """
    have = offer.available_memory_bytes
    need = needed_bytes(workload, precision, batch_size)
    if have is None or need <= have:
        return
    raise NotEnoughMemoryError(
        f"{workload.name} in {precision.name} at batch size {batch_size} needs about "
        f"{need / 1e9:.1f} GB, {offer.device} has {have / 1e9:.1f} GB free: "
        f"{_what_fits(offer, workload, precision, have)}"
    )


def _what_fits(offer: Offer, workload: Workload, precision: Precision, have: int) -> str:
    one, two = (needed_bytes(workload, precision, size) for size in (1, 2))
    if one <= have:
        return f"use --batch-size {1 + (have - one) // (two - one)}"
    for other in offer.precisions:
        if other.native and needed_bytes(workload, other, 1) <= have:
            need = needed_bytes(workload, other, 1)
            return f"use --precision {other.name} ({need / 1e9:.1f} GB at batch size 1)"
    return "no precision fits; try --preset debug, or free memory"


def _precision(offer: Offer, request: RunRequest, workload: Workload) -> Precision:
    offered = ", ".join(p.name for p in offer.precisions) or "none"
    if request.precision is not None:
        wanted = request.precision.upper()
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
        raise UsageError(f"--precision {request.precision}: unknown (choose one of {offered})")
    native = [precision for precision in offer.precisions if precision.native]
    if not native:
        raise UnavailableError(f"plugin {offer.plugin!r} offers no native precision here")
    have = offer.available_memory_bytes
    for precision in native:
        if have is None or needed_bytes(workload, precision, 1) <= have:
            return precision
    return native[0]  # does not fit either: the memory check says so with figures
