"""The links between the ranks of a run: hardware as described, and measured bandwidths.

No name of a host or an interface, no address and no serial number is kept: records are published.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen

#: "send_receive": each rank sends to the next rank and receives from the previous rank.
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_receive"]


class CollectiveRate(Frozen):
    """How fast all ranks together carry out one collective of one size."""

    kind: CollectiveKind
    #: Size of the full tensor: the output of an all-gather, the input of a reduce-scatter; or of a
    #: message.
    bytes: int = Field(ge=1)
    #: Seconds of a call: the median over the rounds.
    seconds: float = Field(gt=0)
    #: Bus bandwidth of a link, comparable between collectives and numbers of ranks.
    bus_bytes_per_second: float
    #: ``bytes`` over ``seconds``; None in reports of before 2026-11-27.
    bytes_per_second: float | None = None
    #: Seconds of a call in each round, in the order of measurement: the mean over ``calls``
    #: consecutive calls, of the slowest rank. Empty in reports of before 2026-11-27.
    rounds_s: tuple[float, ...] = ()
    calls: int | None = Field(default=None, ge=1)


class PciLink(Frozen):
    """The PCI Express link of a device; None for a value that the kernel does not tell.

    Example: 32 GT/s and 16 lanes are a link of generation 5. A resting device may have a slower
    link than at work, so the link's present state and the maximum are both kept.
    """

    gigatransfers_per_second: float | None = Field(default=None, gt=0)
    lanes: int | None = Field(default=None, ge=1)
    most_gigatransfers_per_second: float | None = Field(default=None, gt=0)
    most_lanes: int | None = Field(default=None, ge=1)


class PciDevice(Frozen):
    """A device on the PCI bus."""

    #: Vendor, device and class, in hexadecimal. Example: ``10de:2330 class 0302``, an H100.
    pci: str = Field(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4} class [0-9a-f]{4}$")
    link: PciLink
    #: The NUMA node that the device is attached to; None if the kernel does not tell.
    numa_node: int | None = Field(default=None, ge=0)


class NetworkCard(Frozen):
    """A port of a network card; virtual interfaces are left out."""

    kind: Literal["ethernet", "infiniband"]
    #: Rate of the port; None if the kernel does not tell. Example: 4e11 for 400 Gb/s.
    bits_per_second: float | None = Field(default=None, gt=0)
    is_up: bool | None = None
    #: None for a card that is not on the PCI bus.
    device: PciDevice | None = None


class NumaNode(Frozen):
    """A NUMA node: a group of cores with memory close to them."""

    node: int = Field(ge=0)
    #: Logical cores; None if the kernel does not tell.
    cores: int | None = Field(default=None, ge=0)
    #: Distances to all nodes, in the order of the nodes. Example: ``(10, 21)``.
    distances: tuple[int, ...] = ()


class PairsAlike(Frozen):
    """Pairs of devices with the same kind of connection. Example: 28 pairs of ``NV18``."""

    #: As the vendor's tool prints it. Example: ``NV18``, ``XGMI``, ``XL16``, ``SYS``.
    symbol: str = Field(pattern=r"^[A-Z0-9*-]{1,16}$")
    #: What the symbol means. Example: "NVLink"; None for an unknown symbol.
    name: str | None = Field(default=None, max_length=80)
    #: Number of links, or lanes, that the symbol names. Example: 18 of ``NV18``.
    links: int | None = Field(default=None, ge=1)
    pairs: int = Field(ge=1)


class LinksAlike(Frozen):
    """Links of devices with the same rate; rate None for links that are not active."""

    bytes_per_second: float | None = Field(default=None, gt=0)
    links: int = Field(ge=1)


class DeviceLinks(Frozen):
    """The connections between the devices of a host, as a vendor's tool prints them."""

    #: Example: ``nvidia-smi topo -m``.
    tool: str = Field(max_length=80)
    devices: int = Field(ge=1)
    pairs: tuple[PairsAlike, ...] = ()
    #: Example: 18 links of 26.562 GB/s for each of 8 devices; empty if no tool tells rates.
    links: tuple[LinksAlike, ...] = ()


class HostLinks(Frozen):
    """The links of one host; None where the kernel shows nothing to read."""

    #: Ranks on the host; empty in a report on a node.
    ranks: tuple[int, ...] = ()
    numa: tuple[NumaNode, ...] | None = None
    #: Display controllers and processing accelerators; a server's own display may be among them.
    devices: tuple[PciDevice, ...] | None = None
    cards: tuple[NetworkCard, ...] | None = None
    #: None: no tool of the devices' vendor was found, or the tool gave no answer in time.
    between_devices: DeviceLinks | None = None


class Interconnect(Frozen):
    """The links between all ranks of a run, measured and described before the timed window."""

    #: Library of the measured collectives. Example: ``gloo``; None if nothing was measured.
    library: str | None = Field(default=None, max_length=64)
    #: True: the measuring processes held the plugin, whose code could have changed the figures.
    #: False: the processes held no plugin.
    with_plugin: bool
    #: Seconds from the start of the measuring process to its end, on rank 0.
    seconds: float = Field(gt=0)
    #: All-reduce and all-gather of all ranks at four sizes; empty if the measurement failed.
    rates: tuple[CollectiveRate, ...] = ()
    #: Each host once, in the order of its lowest rank. The host of rank 0 is described by rank 0's
    #: supervisor; descriptions of further hosts come through the measuring processes.
    hosts: tuple[HostLinks, ...] = ()
