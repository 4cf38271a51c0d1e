"""What to type to have a package that a stranger's bundle names; nothing is installed here."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

#: What a distribution may be called (the packaging specification, Names and normalization).
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)


def pip_install(distribution: str, version: str) -> str | None:
    """Return the command that installs ``version`` of ``distribution``; None if there is none.

    Both are a stranger's words, and a reader may paste what is returned into a shell: they must be
    what they say, and nothing else. A version from a source tree is nowhere to be had.
    """
    if not _NAME.fullmatch(distribution):
        return None
    try:
        found = Version(version)
    except InvalidVersion:
        return None
    if str(found) != version or found.is_devrelease or found.dev is not None:
        return None
    if found.local is None:
        return f"pip install {distribution}=={version}"
    # The builds of one version differ by where they come from; no index of all packages has them.
    return f"pip install {distribution}=={found.public} (its build +{found.local})"
