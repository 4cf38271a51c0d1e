"""What public texts say of a device, as the plugins' tests keep it in ``documented.json``.

``status`` says that nothing was read on hardware. Each figure of a device is either under ``read``,
with its source and the words that state it, or under ``not_found``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

STATUS = "documented, not recorded"
WORDS = 20
#: What of a device is no figure.
_NO_FIGURES = {"read", "not_found", "slice_of", "partition_of"}


def load(path: Path) -> dict[str, Any]:
    """Return the documented devices of ``path``."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def figures(device: dict[str, Any]) -> dict[str, Any]:
    """Return a device's figures by their paths, such as "properties.name"; a null is none."""
    found: dict[str, Any] = {}
    for name, value in device.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": leaf for inner, leaf in figures(value).items()}
        elif value is not None and name not in _NO_FIGURES:
            found[name] = value
    return found


def check(known: dict[str, Any]) -> None:
    """Fail where a device is not marked, or a figure is neither read nor known not to be found.

    Raises:
        AssertionError: says which.
    """
    assert known["status"] == STATUS
    assert all("https://" in source for source in known["sources"].values())
    said = [*known["answers"], *(one for device in known["devices"] for one in device["read"])]
    assert {one["source"] for one in said} == {*known["sources"]}
    for one in said:
        assert 0 < len(re.sub("[|…]", " ", one["excerpt"]).split()) <= WORDS, one
    for device in known["devices"]:
        covered = [field for one in device["read"] for field in one["fields"]]
        assert sorted([*covered, *device["not_found"]]) == sorted(figures(device))
        for one in device["read"]:
            for field in one["fields"]:
                value = figures(device)[field]
                assert states(one["excerpt"], value, one.get("times", 1)), (field, value, one)


def states(excerpt: str, value: Any, times: float) -> bool:
    """Tell whether an excerpt states ``value``: a text, a mode as [now, next], or a number.

    A document prints a number in its own unit, or with sparsity: ``times`` is what makes it ours.
    NVIDIA's own documents round dense and sparse rates apart by up to one in a thousand.
    """
    if isinstance(value, str):
        return value in excerpt
    if isinstance(value, list):
        return {0: "disabled", 1: "enabled"}[value[0]] in excerpt.lower()
    plain = excerpt.replace(",", "")
    # The second pattern is the minor number of a compute capability, such as 8.0.
    printed = [*re.findall(r"\d+(?:\.\d+)?(?:e\d+)?", plain), *re.findall(r"\b\d+\.(\d)\b", plain)]
    return any(abs(float(number) * times - value) <= 1e-3 * value for number in printed)
