"""The energy counter of an Intel GPU in Linux.

Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon: ``energy1_input`` counts
microjoules of the whole card, ``energy2_input`` (xe) microjoules of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from llmb.plugin import EnergyReading

HWMON = Path("/sys/class/hwmon")
_DRIVERS = ("xe", "i915")  # "i915_gt0" and the like are parts of a card
_COUNTERS: tuple[tuple[str, Literal["device", "package"]], ...] = (
    ("energy1_input", "device"),
    ("energy2_input", "package"),
)


def energy(devices: int, root: Path = HWMON) -> EnergyReading | None:
    """Return the counter of the only card, None without a card or with several cards.

    The kernel and torch number cards differently, and torch may list each tile of a card as a
    device: only with a single card and ``devices`` = 1 does the counter surely belong to the
    device.
    """
    cards = [card for card in sorted(root.glob("hwmon*")) if _text(card / "name") in _DRIVERS]
    if len(cards) != 1 or devices != 1:
        return None
    for counter, scope in _COUNTERS:
        microjoules = _text(cards[0] / counter)
        if microjoules is not None and microjoules.isdigit():
            return EnergyReading(joules=int(microjoules) / 1e6, source="counter", scope=scope)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
