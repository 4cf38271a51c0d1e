"""A description of this machine for projections: what its devices attain, measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from llmb import supervisor
from llmb.config import RunRequest, ShapeName
from llmb.measure import clock
from llmb.node import plan
from llmb.node.bus import time_collectives
from llmb.projection.hardware_files import Hardware
from llmb.records.node_report import CollectiveRate
from llmb.records.run_record import Ceiling

#: Collectives of one number of ranks take seconds; a library that hangs is given up after it.
_LIMIT_S = 120.0
#: Collectives need no model: whether the workload's fits beside itself is another question.
_SMALL: dict[ShapeName, int] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


def describe(
    request: RunRequest,
    seconds: float,
    nproc: int | None,
    network_bytes_per_second: float | None,
    progress: Callable[[str], None],
) -> tuple[Hardware, Ceiling, dict[int, tuple[CollectiveRate, ...]]]:
    """Return the description, the ceiling, and what collectives attain by the number of ranks.

    The link's speed is the best bus bandwidth of any collective between all devices. The network is
    not measured on one node: where nobody says its speed, it counts as a link.

    Raises:
        LlmbError: a device is not there, or a measurement failed.
    """
    processor = plan.is_processor(request)
    small = request.model_copy(update={"shape_overrides": _SMALL})
    negotiated, seats = plan.settle(small, nproc or (1 if processor else None))
    device = seats[0].name
    progress(f"products and memory of {device}")
    ceiling = supervisor.calibrate(request.model_copy(update={"device": device}), seconds)
    rates = {}
    for count in _counts(len(seats)):
        progress(f"collectives between {count} ranks")
        rates[count] = time_collectives(negotiated, count, _LIMIT_S, lambda: None)
    peak, first = negotiated.terms.peak, negotiated.offer.devices[0]
    # A processor's ranks are shares of its cores, and of everything else.
    shares = len(seats) if processor else 1
    best = ceiling.best_product_flops_per_second or ceiling.flops_per_second
    most = max(best, peak.flops_per_second) if peak else best
    memory = first.memory_bytes or negotiated.offer.available_memory_bytes or 10**9
    link = max((one.bus_bytes_per_second for one in rates.get(len(seats), ())), default=None)
    # Alone it sends nothing: any speed does.
    speed = link or ceiling.memory_bytes_per_second
    hardware = Hardware(
        name=first.name,
        description=first.description or "",
        peak_flops=most / shares,
        sustained_fraction=min(1.0, ceiling.flops_per_second / most),
        memory_bytes=memory // shares,
        memory_bytes_per_second=ceiling.memory_bytes_per_second / shares,
        link_bytes_per_second=speed,
        network_bytes_per_second=network_bytes_per_second or speed,
        devices_per_node=len(seats),
        source=_provenance(negotiated.offer.torch_version, ceiling, len(seats), peak is not None),
    )
    return hardware, ceiling, rates


def _provenance(torch: str, ceiling: Ceiling, ranks: int, datasheet: bool) -> str:
    links = f"collectives of {ranks} ranks" if ranks > 1 else "one device, no link"
    peak = "peak by the datasheet" if datasheet else "peak: its best product"
    return (
        f"llmb calibrate on {clock.utc_now():%Y-%m-%d}: torch {torch}, products of the model in "
        f"{ceiling.precision}, {peak}; copied memory; {links}; the network was not measured"
    )


def _counts(ranks: int) -> Iterator[int]:
    """Yield group sizes to measure: powers of two, and all ranks."""
    count = 2
    while count < ranks:
        yield count
        count *= 2
    if ranks > 1:
        yield ranks
