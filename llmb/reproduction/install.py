"""Install hints for packages named in an untrusted bundle; this module installs nothing."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

#: Valid names of distributions (packaging specification, Names and normalization).
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)


def install_hint(distribution: str, version: str) -> str | None:
    """Return how to get ``version`` of ``distribution``, if possible.

    torch has a command, such as ``pip install torch==2.13.0``. llmb does not know which other names
    a package index has: ``use llmb 0.1.0``, or ``install llmb-acme 1.0 as its vendor says``. Both
    texts come from an untrusted bundle, and a reader may paste the hint into a shell: only a valid
    name and a valid version are accepted. None for anything else, and for a development version: a
    source tree is on no index.
    """
    if not _NAME.fullmatch(distribution):
        return None
    try:
        found = Version(version)
    except InvalidVersion:
        return None
    if str(found) != version or found.is_devrelease or found.dev is not None:
        return None
    if distribution == "llmb":
        return f"use llmb {version}"
    if distribution != "torch":
        return f"install {distribution} {version} as its vendor says"
    if found.local is None:
        return f"pip install torch=={version}"
    # Local builds, such as 2.13.0+cu130, come from a vendor's own index, not from PyPI.
    return f"pip install torch=={found.public} (its build +{found.local})"
