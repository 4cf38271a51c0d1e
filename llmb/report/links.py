"""Links from one page to another in the same folder: never an address, never out of the folder."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*")


def local_link(folder: str | None, file: str) -> str | None:
    """Return the relative link to ``file`` in ``folder``; None: the name may mean something else.

    Example: ``BF16/batch-2/20261122T120001Z-run/report.html``.
    """
    if folder is None or _PLAIN.fullmatch(folder) is None or ".." in folder.split("/"):
        return None
    return f"./{folder}/{file}"
