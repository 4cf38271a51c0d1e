"""Judges the figures of a node: devices that fall behind, and the reasons for a no."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from llmb.records.node_report import Limits, Nearest, NodeDevice, NodeStep, Outlier, Speed

#: Devices of one node should be equally fast: sellers state one figure for all devices, and healthy
#: devices are within a few per cent. Ranks lose the communication time not hidden by computation.
FULL = Limits(device=0.9, together=0.8, efficiency=0.8)
#: Debug runs have steps of milliseconds, and their processes start in the same second: the limits
#: catch gross faults only.
DEBUG = Limits(device=0.25, together=0.25, efficiency=0.25)

_FIGURES: dict[str, Callable[[NodeDevice], float | None]] = {
    "FLOP/s of matrix products": lambda d: (
        d.ceiling.product_flops_per_second if d.ceiling else None
    ),
    "bytes/s of memory": lambda d: d.ceiling.memory_bytes_per_second if d.ceiling else None,
    "tokens/s alone": lambda d: d.alone.tokens_per_second if d.alone else None,
    "tokens/s beside the others": lambda d: d.together.tokens_per_second if d.together else None,
}


def outliers(devices: Sequence[NodeDevice], limits: Limits) -> tuple[Outlier, ...]:
    """Return the devices with a figure below the limit's share of the other devices' median.

    A device's own figure is left out of the median: with two devices, a slow device would pull the
    median half of the way down. Example: limit 0.9, figures 100, 100 and 80: the third device is
    an outlier (80 %).
    """
    found = []
    for name, figure in _FIGURES.items():
        measured = {d.index: value for d in devices if (value := figure(d)) is not None}
        for device in devices:
            rest = [value for index, value in measured.items() if index != device.index]
            if device.index not in measured or not rest:
                continue
            one = Outlier(
                device=device.name, figure=name, value=measured[device.index], others=median(rest)
            )
            if one.share < limits.device:
                found.append(one)
    return tuple(found)


def efficiency(devices: Sequence[NodeDevice], ddp: Speed | None) -> float | None:
    """Return the throughput of DDP over the sum of all devices side by side, None without either.

    The baseline is side by side, not alone: DDP does not cause the losses from shared power, memory
    or buses. Example: 2 devices with 100 tokens/s each, 180 tokens/s with DDP: 0.9.
    """
    together = [device.together for device in devices if device.together is not None]
    if ddp is None or len(together) < len(devices):
        return None
    return ddp.tokens_per_second / sum(speed.tokens_per_second for speed in together)


def reasons(
    steps: Sequence[NodeStep],
    devices: Sequence[NodeDevice],
    found: Sequence[Outlier],
    ddp_efficiency: float | None,
    nearest: Nearest | None,
    limits: Limits,
) -> Iterator[str]:
    """Yield every reason for a no: messages of failed steps, and figures below a limit."""
    for step in steps:
        if step.status == "failed":
            yield from (f"{step.name}: {message}" for message in step.messages)
    for one in found:
        yield (
            f"{one.device}: {one.value:.4g} {one.figure} is {one.share:.0%} of the others' "
            f"{one.others:.4g} (at least {limits.device:.0%} is due)"
        )
    for device in devices:
        if device.alone is None or device.together is None:
            continue
        share = device.together.tokens_per_second / device.alone.tokens_per_second
        if share < limits.together:
            yield (
                f"{device.name}: beside the others it has {share:.0%} of its speed alone "
                f"(at least {limits.together:.0%} is due): they share power, memory or a bus"
            )
    if ddp_efficiency is not None and ddp_efficiency < limits.efficiency:
        yield (
            f"DDP has {ddp_efficiency:.0%} of what the devices have side by side "
            f"(at least {limits.efficiency:.0%} is due): communication is slow"
        )
    if nearest is not None and nearest.ratio is not None and nearest.ratio < limits.device:
        yield (
            f"a device has {nearest.ratio:.0%} of the {nearest.tokens_per_second_per_device:.4g} "
            f"tokens/s of {nearest.path} (at least {limits.device:.0%} is due)"
        )
