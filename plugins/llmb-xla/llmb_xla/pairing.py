"""Imports torch_xla, but only beside the matching torch.

torch_xla's metadata names no torch. Beside a torch of a different minor version the import of
torch_xla ends in an undefined C++ symbol, so the package metadata is checked before the import.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from llmb.errors import UnavailableError

#: Versions of the tests of this plugin.
_TESTED = "torch==2.9.1 torch_xla==2.9.0"


@cache
def torch_xla() -> Any:
    """Return the module ``torch_xla``, which has no types.

    Raises:
        UnavailableError: torch_xla is not installed, or torch has a different minor version.
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
