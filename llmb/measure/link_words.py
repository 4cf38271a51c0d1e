"""The links between ranks in words, for terminals and pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from llmb.records.interconnect import (
    CollectiveRate,
    DeviceLinks,
    HostLinks,
    Interconnect,
    NetworkCard,
    NumaNode,
    PciDevice,
    PciLink,
)

T = TypeVar("T")
NOT_KNOWN = "not known"
#: Giga-transfers a second of a lane -> generation of PCI Express.
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
#: Most kinds of a thing in a line.
_MOST = 6


class RateWords(NamedTuple):
    """A measured collective in words. Example: all_gather, 16 MiB, 4 ms, 4.2 GB/s, 2.1 GB/s."""

    kind: str
    size: str
    #: Median, and the least and the greatest of all rounds; empty without rounds.
    seconds: str
    spread: str
    algorithm: str
    bus: str


def size_of(count: int) -> str:
    """Return ``count`` bytes in a binary unit. Example: ``1.5 MiB``."""
    power = min((count.bit_length() - 1) // 10, 3) if count else 0
    return f"{count / 2 ** (10 * power):.3g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def bandwidth(bytes_per_second: float | None) -> str:
    """Return a rate. Example: ``1.21 GB/s``, ``3.4 MB/s``."""
    if bytes_per_second is None:
        return NOT_KNOWN
    power, unit = (9, "GB/s") if bytes_per_second >= 1e8 else (6, "MB/s")
    return f"{bytes_per_second / 10**power:,.3g} {unit}"


def seconds(value: float) -> str:
    """Return a short time. Example: ``620 us``."""
    power, unit = next(
        (one for one in ((0, "s"), (3, "ms")) if value * 10 ** one[0] >= 1), (6, "us")
    )
    return f"{value * 10**power:,.3g} {unit}"


def headline(found: Interconnect) -> str:
    """Return library, and bus bandwidth of the largest all-reduce.

    Example: ``gloo, all-reduce 1.21 GB/s bus at 16 MiB``.
    """
    among = [rate for rate in found.rates if rate.kind == "all_reduce"] or list(found.rates)
    if not among or found.library is None:
        return "not measured"
    largest = max(among, key=lambda rate: rate.bytes)
    rate = bandwidth(largest.bus_bytes_per_second)
    named = largest.kind.replace("_", "-")
    return f"{found.library}, {named} {rate} bus at {size_of(largest.bytes)}"


def sharing(found: Interconnect) -> str:
    """Return which ranks share a host. Example: ``4 on 2 hosts: 0-1; 2-3``."""
    ranks = [_ranges(host.ranks) for host in found.hosts if host.ranks]
    count = sum(len(host.ranks) for host in found.hosts)
    if not ranks:
        return NOT_KNOWN
    more = "; ..." if len(ranks) > _MOST else ""
    hosts = f"{len(ranks)} host{'s' if len(ranks) > 1 else ''}"
    return f"{count} on {hosts}: {'; '.join(ranks[:_MOST])}{more}"


def whose(found: Interconnect) -> str:
    """Return which process measured, and therefore whose word the bandwidths are."""
    if found.with_plugin:
        return "measured in the plugin's process"
    return "measured in a process without a plugin"


def rate_words(rate: CollectiveRate) -> RateWords:
    """Return ``rate`` in words."""
    spread = ""
    if len(rate.rounds_s) > 1:
        spread = f"{seconds(min(rate.rounds_s))} to {seconds(max(rate.rounds_s))}"
    return RateWords(
        rate.kind.replace("_", "-"),
        size_of(rate.bytes),
        seconds(rate.seconds),
        spread,
        bandwidth(rate.bytes_per_second),
        bandwidth(rate.bus_bytes_per_second),
    )


def curves(found: Interconnect) -> Iterator[tuple[str, str]]:
    """Yield each kind of collective, and its time or bus bandwidth at each size.

    Example: ``all-reduce``, ``64 B in 620 us; 16 MiB 1.21 GB/s``.
    """
    for kind in dict.fromkeys(rate.kind for rate in found.rates):
        least, *larger = sorted(
            (rate for rate in found.rates if rate.kind == kind), key=lambda rate: rate.bytes
        )
        first = f"{size_of(least.bytes)} in {seconds(least.seconds)}"
        rates = [(size_of(rate.bytes), bandwidth(rate.bus_bytes_per_second)) for rate in larger]
        yield kind.replace("_", "-"), "; ".join((first, *map(" ".join, rates[:_MOST])))


def host_words(host: HostLinks) -> Iterator[tuple[str, str]]:
    """Yield the facts on a host: devices, connections between devices, network cards, NUMA."""
    yield "Devices on the bus", _alike(host.devices, _device)
    yield "Between devices", _between(host.between_devices)
    yield "Network cards", _alike(host.cards, _card)
    yield "NUMA", _numa(host.numa)


def kinds_of_hosts(found: Interconnect) -> list[list[tuple[str, str]]]:
    """Return the facts of each kind of host, hosts with equal facts once, at most six kinds."""
    kinds = dict.fromkeys(tuple(host_words(host)) for host in found.hosts)
    return [list(words) for words in kinds][:_MOST]


def _alike(items: Sequence[T] | None, words: Callable[[T], str]) -> str:
    """Return equal items once, with their number. Example: ``8 x 10de:2330 class 0302, ...``."""
    if items is None:
        return NOT_KNOWN
    counted = Counter(words(item) for item in items)
    shown = [text if n == 1 else f"{n} x {text}" for text, n in counted.most_common(_MOST)]
    more = f"; and {len(counted) - _MOST} other kinds" if len(counted) > _MOST else ""
    return "; ".join(shown) + more if shown else "none"


def _device(device: PciDevice) -> str:
    return f"{device.pci}, {_link(device.link)}{_at(device.numa_node)}"


def _at(numa_node: int | None) -> str:
    return "" if numa_node is None else f", NUMA node {numa_node}"


def _link(link: PciLink) -> str:
    """Return a link in words. Example: ``PCIe 5.0 x16``, or with ``(now 1.0 x16)`` at rest."""
    most = _generation(link.most_gigatransfers_per_second, link.most_lanes)
    now = _generation(link.gigatransfers_per_second, link.lanes)
    if most is None or now is None:
        known = most or now
        return f"PCIe {known}" if known else f"PCIe link {NOT_KNOWN}"
    return f"PCIe {most}" + ("" if most == now else f" (now {now})")


def _generation(speed: float | None, lanes: int | None) -> str | None:
    if speed is None or lanes is None:
        return None
    known = _GENERATIONS.get(speed)
    return f"{known}.0 x{lanes}" if known else f"{speed:g} GT/s x{lanes}"


def _card(card: NetworkCard) -> str:
    rate = f"rate {NOT_KNOWN}"
    if card.bits_per_second is not None:
        rate = f"{card.bits_per_second / 1e9:g} Gb/s"
    link = "" if card.device is None else f", {_link(card.device.link)}"
    numa = "" if card.device is None else _at(card.device.numa_node)
    state = {True: "", False: ", down", None: ""}[card.is_up]
    return f"{card.kind} {rate}{state}{link}{numa}"


def _between(found: DeviceLinks | None) -> str:
    if found is None:
        return NOT_KNOWN
    pairs = "; ".join(
        f"{each.pairs} pair{'s' if each.pairs > 1 else ''} {each.symbol}"
        + (f" ({each.name})" if each.name else "")
        for each in found.pairs[:_MOST]
    )
    rates = [
        (one.links, None if one.bytes_per_second is None else bandwidth(one.bytes_per_second))
        for one in found.links[:_MOST]
    ]
    links = "; ".join(f"{n} links " + (f"of {rate}" if rate else "inactive") for n, rate in rates)
    told = "; ".join(part for part in (pairs, links) if part) or "one device"
    return f"{told} ({found.tool})"


def _numa(nodes: Sequence[NumaNode] | None) -> str:
    if nodes is None:
        return NOT_KNOWN
    cores = [NOT_KNOWN if node.cores is None else f"{node.cores}" for node in nodes]
    text = f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} with {', '.join(cores[:16])} cores"
    far = [d for node in nodes for d in node.distances]
    return text + (f", distances {min(far)} to {max(far)}" if len(nodes) > 1 and far else "")


def _ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as ranges. Example: ``0-3, 8``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts[:_MOST]]
    return ", ".join(shown) + (", ..." if len(parts) > _MOST else "")
