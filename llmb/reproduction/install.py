"""Install commands for packages named in an untrusted bundle; this module installs nothing."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

#: Valid names of distributions (packaging specification, Names and normalization).
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)


def pip_install(distribution: str, version: str) -> str | None:
    """Return the install command for ``version`` of ``distribution``, if possible.

    Example: ``pip install torch==2.13.0``. Both texts come from an untrusted bundle, and a reader
    may paste the command into a shell: only a valid name and a valid version are accepted. None
    for anything else, and for a development version: a source tree is on no index.
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
    # Local builds, such as 2.13.0+cu130, come from a vendor's own index, not from PyPI.
    return f"pip install {distribution}=={found.public} (its build +{found.local})"
