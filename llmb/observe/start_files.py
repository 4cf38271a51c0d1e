"""Find files of a plugin's packages that every Python process runs when it starts (rule N2).

Examples: ``sitecustomize.py``, and ``acme.pth`` with the line ``import acme``. The supervisor and
the reference run are such processes, and must run no code of a plugin.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from llmb.observe.origins import CodeOrigin, Origins

#: Modules that Python imports when it starts.
_CUSTOMIZE = ("sitecustomize", "usercustomize")
#: Python executes such a line of a .pth file; every other line names a folder of packages.
_EXECUTED = re.compile(r"(?m)^import[ \t].*$")
_IMPORTED = re.compile(r"\bimport[ \t]+(\w+)")
#: All that setuptools writes into ``__editable__.acme-1.0.pth`` for a package installed in place:
#: ``import __editable___acme_1_0_finder; __editable___acme_1_0_finder.install()``.
_IN_PLACE = re.compile(r"import (__editable___\w+_finder); \1\.install\(\)")
#: Each installation of setuptools has this file.
_SETUPTOOLS = ("setuptools", "distutils-precedence.pth")
_BROUGHT = ("plugin", "library")


def start_files(origins: Origins) -> Iterator[CodeOrigin]:
    """Yield the files of the plugin, and of packages that it brings, which Python runs by itself.

    Not yielded: a .pth file that only names folders, files of packages that torch or llmb need, and
    what setuptools writes for a package installed in place (``pip install -e``).
    """
    folders = {Path(entry or ".").resolve() for entry in sys.path}
    found: dict[Path, CodeOrigin] = {}
    for path, place, in_place in origins.brought_files():
        top = place.name.partition("/")[0].partition(".")[0]
        runs = top in _CUSTOMIZE or _executes(path, folders, in_place=in_place)
        if runs and (place.distribution, place.name) != _SETUPTOOLS:
            found.setdefault(path.resolve(), place)
    for folder in folders:
        for path in sorted(folder.glob("*.pth")):
            if path in found or not _executes(path, folders, in_place=True):
                continue
            if (named := _named_in(path, origins)) is not None:
                found[path] = named
    for module in _CUSTOMIZE:
        if (customize := _of_module(module, origins)) is not None:
            found.setdefault(Path(customize.name), customize)
    yield from {place.name: place for place in found.values()}.values()


def _executes(path: Path, folders: set[Path], *, in_place: bool) -> bool:
    """Tell whether Python executes a line of the .pth file ``path``, if the file is one.

    A file that is gone may have removed itself.
    """
    if path.suffix != ".pth" or path.parent.resolve() not in folders:
        return False
    lines = _lines(path)
    if lines is None:
        return True
    if in_place and path.name.startswith("__editable__."):
        lines = [line for line in lines if not _IN_PLACE.fullmatch(line.strip())]
    return bool(lines)


def _lines(path: Path) -> list[str] | None:
    try:
        return _EXECUTED.findall(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def _named_in(path: Path, origins: Origins) -> CodeOrigin | None:
    """Return the owner of ``path``, which no package lists, by a module that ``path`` imports."""
    for name in _IMPORTED.findall("\n".join(_lines(path) or ())):
        if (place := _of_module(name, origins)) is not None:
            return place._replace(name=path.name)
    return None


def _of_module(name: str, origins: Origins) -> CodeOrigin | None:
    """Return the origin of the top-level module ``name``; None if nobody brought the module."""
    spec = PathFinder.find_spec(name)
    if spec is None or not spec.origin:
        return None
    place = origins.of(spec.origin)
    return place if place.origin in _BROUGHT else None
