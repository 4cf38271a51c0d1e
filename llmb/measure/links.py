"""Describes the links of this host from the kernel's files: PCI Express, network cards, NUMA.

Formats: the kernel's Documentation/ABI, files ``sysfs-bus-pci``, ``sysfs-class-net``,
``sysfs-class-infiniband`` and ``stable/sysfs-devices-node``. Names of interfaces are not read: an
interface may be named after its hardware address (``enx0123456789ab``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from llmb.measure import host, link_tools
from llmb.plugin.builtin.host import read_text
from llmb.records.interconnect import HostLinks, NetworkCard, NumaNode, PciDevice, PciLink

_SYS = Path("/sys")
#: Hardware types of network interfaces (linux/if_arp.h): Ethernet and InfiniBand.
_KINDS = {"1": "ethernet", "32": "infiniband"}
#: The most lanes of a PCI Express link; 63 and 255 mean that no link is known.
_MOST_LANES = 32
#: An identity of a PCI device, for example ``10de:2330 class 0302``.
_IDENTITY = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4} class [0-9a-f]{4}")


def describe(system: Path = _SYS, *, tools: bool = True) -> HostLinks:
    """Return the links of this host; ``system`` is the folder of the kernel's files.

    ``tools``: also ask the tool of the devices' vendor, such as ``nvidia-smi topo -m``. A value
    that cannot be read is None. The call takes milliseconds, and seconds with a slow tool.
    """
    bus = system / "bus" / "pci" / "devices"
    devices = None
    if bus.is_dir():
        folders = host.pci_accelerators(bus)
        devices = tuple(found for each in folders if (found := _pci_device(each)) is not None)
    vendors = {device.pci.partition(":")[0] for device in devices or ()}
    return HostLinks(
        numa=_numa(system / "devices" / "system" / "node"),
        devices=devices,
        cards=_cards(system / "class"),
        between_devices=link_tools.ask(vendors) if tools else None,
    )


def _pci_device(folder: Path) -> PciDevice | None:
    """Return the PCI device in ``folder``, None if its identity cannot be read."""
    identity = host.pci_identity(folder)
    if _IDENTITY.fullmatch(identity) is None:
        return None
    link = PciLink(
        gigatransfers_per_second=_speed(folder / "current_link_speed"),
        lanes=_lanes(folder / "current_link_width"),
        most_gigatransfers_per_second=_speed(folder / "max_link_speed"),
        most_lanes=_lanes(folder / "max_link_width"),
    )
    return PciDevice(pci=identity, link=link, numa_node=_count(folder / "numa_node"))


def _speed(file: Path) -> float | None:
    """Return GT/s. Example of a file: ``32.0 GT/s PCIe``; ``Unknown`` without a link."""
    found = re.match(r"(\d{1,3}(?:\.\d+)?) GT/s", read_text(file) or "")
    return float(found[1]) or None if found else None


def _lanes(file: Path) -> int | None:
    lanes = _count(file)
    return lanes if lanes is not None and 1 <= lanes <= _MOST_LANES else None


def _count(file: Path) -> int | None:
    """Return the number in ``file``; None for -1, which the kernel writes for "not known"."""
    text = read_text(file) or ""
    return int(text) if text.isdecimal() and len(text) <= 9 else None


def _numa(folder: Path) -> tuple[NumaNode, ...] | None:
    numbers = sorted(int(path.name[4:]) for path in folder.glob("node*") if path.name[4:].isdigit())
    if not numbers:
        return None
    return tuple(
        NumaNode(
            node=number,
            cores=_cores(read_text(folder / f"node{number}" / "cpulist")),
            distances=tuple(
                int(each)
                for each in (read_text(folder / f"node{number}" / "distance") or "").split()
                if each.isdecimal()
            ),
        )
        for number in numbers
    )


def _cores(ranges: str | None) -> int | None:
    """Return the number of cores in a list of ranges. Example: ``0-23,96-119`` has 48."""
    if ranges is None or re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", ranges) is None:
        return None
    ends = (part.partition("-") for part in ranges.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _cards(classes: Path) -> tuple[NetworkCard, ...] | None:
    """Return the ports of the network cards; None if the kernel shows no interfaces.

    A card that is driven both as InfiniBand device and as network interface counts once.
    """
    interfaces, fabrics = classes / "net", classes / "infiniband"
    if not interfaces.is_dir():
        return None
    return (*_ports(fabrics), *_interfaces(interfaces))


def _ports(fabrics: Path) -> Iterator[NetworkCard]:
    for port in sorted(fabrics.glob("*/ports/*")):
        rate = re.match(r"(\d{1,6}(?:\.\d+)?) Gb/sec", read_text(port / "rate") or "")
        layer = read_text(port / "link_layer")
        state = read_text(port / "state")
        yield NetworkCard(
            kind="ethernet" if layer == "Ethernet" else "infiniband",
            bits_per_second=(float(rate[1]) * 1e9 or None) if rate else None,
            is_up=None if state is None else state.startswith("4:"),  # "4: ACTIVE"
            device=_of(port.parent.parent / "device"),
        )


def _interfaces(interfaces: Path) -> Iterator[NetworkCard]:
    for interface in sorted(interfaces.iterdir()):
        device, kind = interface / "device", read_text(interface / "type")
        # A virtual interface, such as a bridge of containers, has no device.
        if kind not in _KINDS or not device.exists() or (device / "infiniband").is_dir():
            continue
        megabits = _count(interface / "speed")  # of Ethernet; -1 without a link
        state = read_text(interface / "operstate")
        yield NetworkCard(
            kind="ethernet" if kind == "1" else "infiniband",
            bits_per_second=megabits * 1e6 if megabits else None,
            is_up={"up": True, "down": False}.get(state or ""),
            device=_of(device),
        )


def _of(device: Path) -> PciDevice | None:
    """Return the PCI device that ``device`` is, or is on, such as a virtual card's device."""
    folder = device.resolve()
    for each in (folder, folder.parent):
        if (each / "class").is_file() and (found := _pci_device(each)) is not None:
            return found
    return None
