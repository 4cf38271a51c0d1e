"""Imports torch_xla, but only beside the torch that it was built for.

torch_xla's metadata names no torch. Beside a torch of another minor version its import ends in an
undefined C++ symbol, so the question is put to the package metadata, before the import.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from llmb.errors import UnavailableError

#: What this plugin is tested with.
_TESTED = "torch==2.9.1 torch_xla==2.9.0"


@cache
def torch_xla() -> Any:
    """Return the module ``torch_xla``; it comes without types.

    Raises:
        UnavailableError: it is not installed, or torch is of another minor version.
    """
    try:
        xla, torch = version("torch_xla"), version("torch")
    except PackageNotFoundError as error:
        raise UnavailableError(f"{error.name} is not installed: pip install {_TESTED}") from None
    if _minor(xla) != _minor(torch):
        raise UnavailableError(
            f"torch_xla {xla} needs torch {_minor(xla)}, and torch {torch} is installed: "
            f"in an environment of its own, pip install {_TESTED}"
        )
    return import_module("torch_xla")


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])
