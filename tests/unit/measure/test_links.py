"""The links of a host: from a made-up tree of the kernel's files, and from recorded outputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from llmb.measure import link_tools, link_words, links
from llmb.records.interconnect import CollectiveRate, HostLinks, Interconnect, PairsAlike

MAC = "3c:ec:ef:12:34:56"
H100 = {
    "vendor": "0x10de",
    "device": "0x2330",
    "class": "0x030200",
    "current_link_speed": "2.5 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "numa_node": "1",
}
CARD = {
    "vendor": "0x15b3",
    "device": "0x1021",
    "class": "0x020700",
    "current_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_speed": "32.0 GT/s PCIe",
    "max_link_width": "16",
    "numa_node": "-1",
}
#: An idle port of a virtual machine: no link, no node, no rate.
VIRTUAL = {
    "vendor": "0x1af4",
    "device": "0x1041",
    "class": "0x020000",
    "current_link_speed": "Unknown",
    "current_link_width": "0",
    "max_link_width": "255",
    "numa_node": "-1",
}


def write(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a host of two GPUs, an InfiniBand card, a virtual card and a bridge of containers."""
    bus = tmp_path / "bus" / "pci" / "devices"
    write(bus / "0000:18:00.0", H100)
    write(bus / "0000:2a:00.0", {**H100, "current_link_speed": "32.0 GT/s PCIe"})
    card = write(bus / "0000:3b:00.0", CARD)
    (card / "infiniband").mkdir()
    (write(bus / "0000:00:03.0", VIRTUAL) / "virtio2").mkdir()

    net = tmp_path / "class" / "net"
    port = {"rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand", "state": "4: ACTIVE"}
    fabric = write(tmp_path / "class" / "infiniband" / "mlx5_0", {"node_guid": MAC})
    write(fabric / "ports" / "1", port)
    (fabric / "device").symlink_to(card)
    for name, kind, speed, device in (
        ("ib0", "32", "400000", card),
        ("enx3cecef123456", "1", "-1", bus / "0000:00:03.0" / "virtio2"),
        ("docker0", "1", "10000", None),
        ("lo", "772", "-1", None),
    ):
        files = {"type": kind, "speed": speed, "operstate": "up", "address": MAC}
        interface = write(net / name, files)
        if device is not None:
            (interface / "device").symlink_to(device)
    for node, cores, distance in ((0, "0-23,96-119", "10 21"), (1, "24-47,120-143", "21 10")):
        folder = tmp_path / "devices" / "system" / "node" / f"node{node}"
        write(folder, {"cpulist": cores, "distance": distance})
    return tmp_path


def test_a_host_is_described_from_the_kernels_files(system: Path) -> None:
    found = links.describe(system, tools=False)
    assert [node.cores for node in found.numa or ()] == [48, 48]
    assert [node.distances for node in found.numa or ()] == [(10, 21), (21, 10)]
    assert dict(link_words.host_words(found)) == {
        "Devices on the bus": "10de:2330 class 0302, PCIe 5.0 x16 (now 1.0 x16), NUMA node 1; "
        "10de:2330 class 0302, PCIe 5.0 x16, NUMA node 1",
        "Between devices": "not known",
        "Network cards": "infiniband 400 Gb/s, PCIe 5.0 x16; "
        "ethernet rate not known, PCIe link not known",
        "NUMA": "2 nodes with 48, 48 cores, distances 10 to 21",
    }


def test_no_name_and_no_address_is_kept(system: Path) -> None:
    text = links.describe(system, tools=False).model_dump_json()
    assert not [word for word in (MAC, "3cecef", "mlx5", "ib0", "0000:18") if word in text]


def test_what_cannot_be_read_is_not_known(system: Path, tmp_path: Path) -> None:
    empty = links.describe(tmp_path / "none", tools=False)
    assert empty == HostLinks(numa=None, devices=None, cards=None)
    broken = system / "bus" / "pci" / "devices" / "0000:18:00.0"
    write(broken, {"current_link_speed": "\x1b[2J", "max_link_width": "9" * 30, "numa_node": "x"})
    write(system / "devices" / "system" / "node" / "node0", {"cpulist": "0-", "distance": "a b"})
    found = links.describe(system, tools=False)
    first = (found.devices or ())[0]
    assert (first.link.gigatransfers_per_second, first.link.most_lanes) == (None, None)
    assert (first.numa_node, (found.numa or ())[0].cores) == (None, None)


#: nvidia-smi topo -m on 4 H100 with a card each, from NVIDIA/nccl issue 1617.
FOUR_H100 = """
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV6     NV6     NV6     PIX     SYS     SYS     SYS     6,14,22,30      3               N/A
GPU1    NV6      X      NV6     NV6     SYS     PIX     SYS     SYS     4,12,20,28      1               N/A
GPU2    NV6     NV6      X      NV6     SYS     SYS     PIX     SYS     7,15,23,31      7               N/A
GPU3    NV6     NV6     NV6      X      SYS     SYS     SYS     PIX     5,13,21,29      5               N/A
NIC0    PIX     SYS     SYS     SYS      X      SYS     SYS     SYS
NIC1    SYS     PIX     SYS     SYS     SYS      X      SYS     SYS

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""  # noqa: E501
#: nvidia-smi topo -m with tabs, on two cards without NVLink, from noonghunna/club-3090 issue 1229.
TWO_5090 = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tPHB\t0-63\t0\t\tN/A\nGPU1\tPHB\t X \t0-63\t0\t\tN/A\n"
)
#: The layout of rocm-smi --showtopotype, as recorded in ROCm/ROCm issue 1503 (two MI100 by PCIE),
#: with the tool's two symbols for two pairs of devices.
MI250 = """
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         PCIE         PCIE
GPU1   XGMI         0            PCIE         PCIE
GPU2   PCIE         PCIE         0            XGMI
GPU3   PCIE         PCIE         XGMI         0
================================== End of ROCm SMI Log ===================================
"""
#: The layout of xpu-smi topology -m as recorded in sgl-project/sglang pull request 38873, with the
#: symbols of two cards of two tiles from the tool's own help text.
MAX_1550 = """
         GPU 0/0  GPU 0/1  GPU 1/0  GPU 1/1  CPU Affinity
GPU 0/0  S        MDF      XL*      XL16     0-55,112-167
GPU 0/1  MDF      S        XL16     XL*      0-55,112-167
GPU 1/0  XL*      XL16     S        MDF      0-55,112-167
GPU 1/1  XL16     XL*      MDF      S        0-55,112-167
"""


@pytest.mark.parametrize(
    ("said", "devices", "pairs"),
    [
        (FOUR_H100, 4, [("NV6", "NVLink", 6, 6)]),
        (TWO_5090, 2, [("PHB", "PCI Express host bridge", None, 1)]),
        (MI250, 4, [("PCIE", "PCI Express", None, 4), ("XGMI", "xGMI", None, 2)]),
        (
            MAX_1550,
            4,
            [
                ("MDF", "within a device", None, 2),
                ("XL*", "Xe Link", None, 2),
                ("XL16", "Xe Link", 16, 2),
            ],
        ),
        ("\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n", 1, []),
    ],
)
def test_a_tools_matrix_gives_each_pair_once(
    said: str, devices: int, pairs: list[tuple[str, str, int | None, int]]
) -> None:
    found = link_tools.matrix(said, "tool")
    assert found is not None
    assert found.devices == devices
    assert [(p.symbol, p.name, p.links, p.pairs) for p in found.pairs] == pairs


def test_an_output_without_a_whole_matrix_is_no_answer_and_odd_symbols_are_left_out() -> None:
    assert link_tools.matrix("No devices were found\n", "tool") is None
    assert link_tools.matrix(FOUR_H100[:400], "tool") is None
    odd = TWO_5090.replace("PHB", "<b>\x1b]0;x\x07")
    assert link_tools.matrix(odd, "tool") == link_tools.DeviceLinks(tool="tool", devices=2)


def test_rates_of_links_are_counted_and_serial_numbers_are_not_read() -> None:
    """Lines of NVIDIA/k8s-test-infra issue 371 and Azure/azhpc-diagnostics issue 73."""
    said = "GPU 0: NVIDIA GB200 (UUID: GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bde)\n"
    said += "         Link 0: 53.125 GB/s\n         Link 1: 53.125 GB/s\n"
    said += "         Link 2: <inactive>\n"
    found = link_tools.rates(said)
    assert [(one.bytes_per_second, one.links) for one in found] == [(53.125e9, 2), (None, 1)]


def test_a_vendors_tool_is_asked_only_beside_its_devices_and_may_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        asked.append(" ".join(command[1:]))
        if command[1] == "nvlink":
            raise subprocess.TimeoutExpired(command, 10.0)
        return subprocess.CompletedProcess(command, 0, FOUR_H100.encode())

    monkeypatch.setattr(link_tools.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(link_tools.subprocess, "run", run)
    assert link_tools.ask({"1af4"}) is None
    found = link_tools.ask({"1af4", "10de"})
    assert found is not None
    assert found.pairs == (PairsAlike(symbol="NV6", name="NVLink", links=6, pairs=6),)
    assert (found.links, asked) == ((), ["topo -m", "nvlink -s"])
    monkeypatch.setattr(link_tools.shutil, "which", lambda name: None)
    assert link_tools.ask({"10de"}) is None


def test_words_name_the_largest_all_reduce_and_the_ranks_of_each_host() -> None:
    rates = tuple(
        CollectiveRate(kind=kind, bytes=size, seconds=took, bus_bytes_per_second=size / took)
        for kind, size, took in (
            ("all_reduce", 64, 6e-4),
            ("all_reduce", 2**28, 1e-3),
            ("all_gather", 2**28, 2e-3),
        )
    )
    hosts = (HostLinks(ranks=(0, 1, 2, 3)), HostLinks(ranks=(4, 6)))
    found = Interconnect(library="nccl", with_plugin=True, seconds=2.0, rates=rates, hosts=hosts)
    assert link_words.headline(found) == "nccl, all-reduce 268 GB/s bus at 256 MiB"
    assert link_words.sharing(found) == "6 on 2 hosts: 0-3; 4, 6"
    assert dict(link_words.curves(found))["all-reduce"] == "64 B in 600 us; 256 MiB 268 GB/s"
    assert link_words.whose(found) == "measured in the plugin's process"
    nothing = Interconnect(with_plugin=False, seconds=2.0)
    assert link_words.headline(nothing) == "not measured"
    assert len(link_words.kinds_of_hosts(found)) == 1
