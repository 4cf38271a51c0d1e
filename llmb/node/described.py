"""Describes this machine for projections: measured FLOP/s, memory bandwidth and link speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from llmb import clock, supervisor
from llmb.config import RunRequest, ShapeName
from llmb.errors import RunFailedError, UsageError
from llmb.node import plan
from llmb.node.bus import time_collectives
from llmb.projection.hardware_files import Hardware, first_fault
from llmb.records.ceiling import Ceiling
from llmb.records.interconnect import CollectiveRate
from llmb.supervision.negotiation import Negotiated
from llmb.wire.messages import Offer

#: Seconds for the collectives of one group size. Collectives take a few; a library may hang.
_LIMIT_S = 120.0
#: A tiny model. Collectives need no model, and the workload's own model may not fit on a host
#: once per rank.
_SMALL: dict[ShapeName, int] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}

#: Collectives of a training step; messages (``send_receive``) have a speed of their own.
_OF_STEPS = ("all_reduce", "all_gather", "reduce_scatter")

#: Number of ranks -> rates of every collective. Example: keys 2, 4 and 8 on a node of 8 devices.
Rates = Mapping[int, tuple[CollectiveRate, ...]]


@dataclass(frozen=True)
class Told:
    """Figures from the user, which a single node or the plugin cannot give; None: not given."""

    memory_bytes: int | None = None
    network_bytes_per_second: float | None = None


@dataclass(frozen=True)
class Described:
    """A hardware description, with the measurements behind the description."""

    hardware: Hardware
    ceiling: Ceiling
    rates: Rates


def describe(
    request: RunRequest,
    seconds: float,
    nproc: int | None,
    told: Told,
    progress: Callable[[str], None],
) -> Described:
    """Measure one device, and collectives between the first ``nproc`` devices.

    ``nproc`` None: all devices, or one rank on a processor. ``seconds`` is the approximate time for
    the matrix products and the memory copy.

    Raises:
        LlmbError: a device is missing, or a measurement failed.
        UsageError: neither the plugin nor ``told`` gives the memory of a device.
    """
    processor = plan.is_processor(request)
    small = request.model_copy(update={"shape_overrides": _SMALL})
    negotiated, seats = plan.settle(small, nproc or (1 if processor else None))
    # Each rank of a processor has an equal share of the cores, memory and FLOP/s.
    shares = len(seats) if processor else 1
    memory = memory_of(negotiated.offer, shares, told.memory_bytes)
    device = seats[0].name
    progress(f"products and memory of {device}")
    ceiling = supervisor.calibrate(request.model_copy(update={"device": device}), seconds)
    rates = {}
    for count in _counts(len(seats)):
        progress(f"collectives between {count} ranks")
        rates[count] = time_collectives(negotiated, count, _LIMIT_S, lambda: None)
    hardware = hardware_of(
        negotiated,
        ceiling,
        rates,
        ranks=len(seats),
        shares=shares,
        memory_bytes=memory,
        network_bytes_per_second=told.network_bytes_per_second,
    )
    return Described(hardware, ceiling, rates)


def memory_of(offer: Offer, shares: int, told: int | None) -> int:
    """Return the memory of one device in bytes, divided by ``shares`` (1, or ranks of a processor).

    ``told``, the user's figure, is returned undivided. Example: a processor with 64 GB and 2 shares
    gives 32 GB.

    Raises:
        UsageError: neither the plugin nor the user gives the memory.
    """
    if told is not None:
        return told
    first = plan.devices_of(offer)[0]
    known = first.memory_bytes or offer.available_memory_bytes
    if known is None:
        raise UsageError(
            f"plugin {offer.plugin!r} does not know how much memory {first.name} has: say it "
            "with --memory-gb"
        )
    return known // shares


def hardware_of(
    negotiated: Negotiated,
    ceiling: Ceiling,
    rates: Rates,
    *,
    ranks: int,
    shares: int,
    memory_bytes: int,
    network_bytes_per_second: float | None,
) -> Hardware:
    """Return the hardware description made of ``ceiling`` and ``rates`` between ``ranks`` ranks.

    Link speed: the best bus bandwidth of any collective of a training step between all devices.
    Message speed: the best bus bandwidth of ``send_receive``. Values not measured are None.

    Raises:
        RunFailedError: the measured values fail the validation of ``Hardware``.
    """
    peak, first = negotiated.terms.peak, plan.devices_of(negotiated.offer)[0]
    best = ceiling.best_product_flops_per_second or ceiling.flops_per_second
    most = max(best, peak.flops_per_second) if peak else best
    among = rates.get(ranks, ())
    messages = [one for one in among if one.kind == "send_receive"]
    collectives = [one for one in among if one.kind in _OF_STEPS]
    sums = [one.seconds for one in among if one.kind == "all_reduce"]
    network = "as said by --network-gbps" if network_bytes_per_second else "not measured"
    try:
        return Hardware(
            name=first.name[:64],
            description=first.description or "",
            peak_flops=most / shares,
            sustained_fraction=min(1.0, ceiling.flops_per_second / most),
            memory_bytes=memory_bytes,
            memory_bytes_per_second=ceiling.memory_bytes_per_second / shares,
            link_bytes_per_second=_fastest(collectives),
            message_bytes_per_second=_fastest(messages),
            latency_s=min(sums, default=None),
            network_bytes_per_second=network_bytes_per_second,
            devices_per_node=ranks,
            source=f"llmb calibrate on {clock.utc_now():%Y-%m-%d}: "
            f"torch {negotiated.offer.torch_version}, products of the model in "
            f"{ceiling.precision}, peak: {'the datasheet' if peak else 'its best product'}; "
            f"copied memory; {_links(ranks, shares)}; network: {network}",
        )
    except ValidationError as error:
        raise RunFailedError(
            f"what was measured describes no device: {first_fault(error)}; measure longer "
            "(--seconds), or in a format it computes in (--precision)"
        ) from None


def _fastest(rates: list[CollectiveRate]) -> float | None:
    return max((one.bus_bytes_per_second for one in rates), default=None)


def _links(ranks: int, shares: int) -> str:
    if ranks == 1:
        return "one device, no link"
    whose = ", each a share of one processor" if shares > 1 else ""
    return f"collectives and messages of {ranks} ranks{whose}"


def _counts(ranks: int) -> Iterator[int]:
    """Yield group sizes to measure: powers of two, and all ranks. Example: 6 gives 2, 4, 6."""
    count = 2
    while count < ranks:
        yield count
        count *= 2
    if ranks > 1:
        yield ranks
