"""What a device's vendor documents say of it, as the plugins' tests keep it in ``documented.json``.

``status`` says that nothing was read on hardware; every device names the documents it is from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

STATUS = "documented, not recorded"


def load(path: Path) -> dict[str, Any]:
    """Return the documented devices of ``path``."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def check(known: dict[str, Any]) -> None:
    """Fail where a device is not marked, or names a document that is not listed with its address.

    Raises:
        AssertionError: says which.
    """
    assert known["status"] == STATUS
    assert all("https://" in source for source in known["sources"].values())
    named = {source for device in known["devices"] for source in device["source"]}
    assert named == {*known["sources"]}
    assert all(device["source"] for device in known["devices"])
