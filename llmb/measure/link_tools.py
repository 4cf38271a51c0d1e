"""Asks the tool of a device's vendor how the devices of this host are connected.

The tools print a matrix: a row and a column for each device, and a symbol for each pair. Example:
``NV18`` for 18 NVLinks between two devices. ``link_tools.json`` has a command for each vendor, by
the vendor's number on the PCI bus. Only symbols and numbers are taken from the output: the tools
also print serial numbers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence, Set
from functools import cache
from importlib.resources import files

from llmb.records.interconnect import DeviceLinks, LinksAlike, PairsAlike

#: Seconds for an answer: a driver without a running user may take some seconds to start.
_LIMIT_S = 10.0
#: Characters of an output that are read. 64 devices have a matrix of 40,000 characters.
_MOST_CHARACTERS = 200_000
#: A device in the first row or column of a matrix. Example: ``GPU0``, or ``GPU 0/1`` for a tile.
_DEVICE = re.compile(r"GPU ?(\d+(?:/\d+)?)(?![\d/])")
#: The start of a symbol -> meaning. Sources: the tools' own legends.
_NAMES = {
    "NV": "NVLink",
    "XGMI": "xGMI",
    "XL": "Xe Link",
    "MDF": "within a device",
    "PCIE": "PCI Express",
    "PIX": "at most one PCI Express bridge",
    "PXB": "several PCI Express bridges",
    "PHB": "PCI Express host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "between NUMA nodes",
}
_COUNTED = ("NV", "XL")
#: Symbols of a device to itself, in the three tools.
_SELF = {"X", "S", "0"}


def ask(vendors: Set[str]) -> DeviceLinks | None:
    """Return the connections between the devices of ``vendors``, such as ``{"10de"}``.

    None: no known vendor, no tool, or no readable answer within 10 s.
    """
    for vendor, known in commands().items():
        if vendor in vendors:
            said = output(known["matrix"])
            links = None if said is None else matrix(said, " ".join(known["matrix"]))
            if links is not None and "rates" in known:
                links = links.model_copy(update={"links": rates(output(known["rates"]) or "")})
            if links is not None:
                return links
    return None


@cache
def commands() -> dict[str, dict[str, list[str]]]:
    """Return the commands of each vendor, by the vendor's number on the PCI bus.

    Example: ``{"10de": {"matrix": ["nvidia-smi", "topo", "-m"], ...}, ...}``.
    """
    text = files("llmb.measure").joinpath("link_tools.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, list[str]]] = json.loads(text)
    return found


def output(command: Sequence[str]) -> str | None:
    """Return what ``command`` prints; None without the program, after an error, or after 10 s."""
    program = shutil.which(command[0])
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout[:_MOST_CHARACTERS].decode(errors="replace")


def matrix(said: str, tool: str) -> DeviceLinks | None:
    """Return the pairs of devices in ``said``, the output of ``tool``; None without a matrix.

    Each pair counts once, from the row of the first device. Columns of network cards and of cores
    are left out: only the first columns are of devices.
    """
    rows: dict[str, list[str]] = {}
    columns: list[str] = []
    for line in re.sub(r"\x1b\[[\d;]*m", "", said).splitlines():
        text = line.strip().replace("|", " ")
        names = _DEVICE.findall(text)
        if len(names) > 1 or (names and not columns):
            columns = columns or names
        elif names and columns and _DEVICE.match(text):
            cells = _DEVICE.sub("", text, count=1).split()
            rows.setdefault(names[0], cells[: len(columns)])
    pairs = Counter(
        symbol
        for name, cells in rows.items()
        if name in columns
        for other, symbol in zip(columns, cells, strict=False)
        if columns.index(other) > columns.index(name) and symbol not in _SELF
    )
    if not columns or len(rows) != len(columns):
        return None
    alike = [_alike(symbol, count) for symbol, count in pairs.most_common()]
    kept = tuple(one for one in alike if one is not None)
    return DeviceLinks(tool=tool, devices=len(columns), pairs=kept)


def _alike(symbol: str, pairs: int) -> PairsAlike | None:
    if re.fullmatch(r"[A-Z0-9*-]{1,16}", symbol) is None:
        return None
    start = next((each for each in _NAMES if symbol.startswith(each)), None)
    counted = re.fullmatch(r"[A-Z]+(\d{1,4})", symbol) if start in _COUNTED else None
    return PairsAlike(
        symbol=symbol,
        name=None if start is None else _NAMES[start],
        links=int(counted[1]) or None if counted else None,
        pairs=pairs,
    )


def rates(said: str) -> tuple[LinksAlike, ...]:
    """Return the rates of all links in the output of ``nvidia-smi nvlink -s``.

    Example: ``Link 0: 26.562 GB/s``; ``Link 3: <inactive>`` has no rate.
    """
    found = Counter(
        re.findall(r"^\s*Link \d+: (\d+(?:\.\d+)? GB/s|<inactive>)", said, re.MULTILINE)
    )
    return tuple(
        LinksAlike(
            bytes_per_second=None if "inactive" in rate else float(rate.split()[0]) * 1e9 or None,
            links=count,
        )
        for rate, count in found.most_common()
    )
