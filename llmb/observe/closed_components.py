"""List native libraries loaded on behalf of the plugin, without visible sources."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

from llmb.errors import RunFailedError, UnavailableError
from llmb.observe.plugin_files import loaded_files
from llmb.plugin import NativeLibrary
from llmb.plugin.discovery import (
    applies,
    normalised,
    requirements,
    source_root,
    torch_extensions,
    version_of,
)
from llmb.records.run_record import ClosedComponent

_MAPS = Path("/proc/self/maps")
_LIBRARY = re.compile(r"\.(so(\.[0-9]+)*|dylib|pyd|dll)$")
_EVERY = "*"


def closed_components(
    module_name: str, plugin: str, declared: Sequence[NativeLibrary]
) -> tuple[ClosedComponent, ...]:
    """Return the loaded native code of the plugin: shipped, required, or declared by the plugin.

    Shipped: compiled files in the package of ``module_name``, and all that the distribution
    ``plugin`` records. Required: compiled files of every distribution that ``plugin`` depends on,
    or that torch loads by itself, unless torch or llmb needs the distribution. Drivers and system
    libraries are no components.

    Raises:
        UnavailableError: a declared library is missing.
        RunFailedError: a loaded library has been deleted.
    """
    found = {c.name: c for c in _shipped(module_name, plugin)}
    everybodys = _closure(["torch", "llmb"])
    brought = {normalised(name) for name in (plugin, *torch_extensions())} - everybodys
    for name in sorted(_closure(brought, extras=True) - everybodys - {normalised(plugin)}):
        found |= {c.name: c for c in _of_distribution(distribution(name))}
    found |= {c.name: c for c in map(_as_declared, declared)}
    return tuple(found[name] for name in sorted(found))


def _shipped(module_name: str, plugin: str) -> Iterator[ClosedComponent]:
    root = source_root(module_name)
    inside = root.folder / root.package.replace(".", "/")
    files = {file.resolve() for file in loaded_files(root.package) if file.suffix != ".py"}
    files |= {file for file in _mapped() if file.is_relative_to(inside)}
    owner = distribution(plugin)
    for file in files:
        yield _component(file, file.relative_to(root.folder).as_posix(), owner)
    yield from _of_distribution(owner)  # beside the package, or behind a link


def _of_distribution(owner: Distribution) -> Iterator[ClosedComponent]:
    mapped = _mapped()
    names = {file.name for file in mapped}
    for entry in owner.files or ():
        if _LIBRARY.search(entry.name) or entry.name in names:
            file = Path(str(owner.locate_file(entry))).resolve()
            if file in mapped:
                yield _component(file, str(entry), owner)


def _as_declared(library: NativeLibrary) -> ClosedComponent:
    file = Path(library.path)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UnavailableError(
            f"llmb_native_libraries declares {library.path!r}: {error.strerror}"
        ) from None
    return ClosedComponent(
        name=file.name,
        version=library.version,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        where_to_get=library.where_to_get,
        licence=library.licence,
    )


def _component(file: Path, name: str, owner: Distribution) -> ClosedComponent:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RunFailedError(
            f"{name} has been loaded and cannot be read any more ({error.strerror}): leave the "
            f"files of {owner.metadata['Name']} where they are while a run lasts"
        ) from None
    return ClosedComponent(
        name=name,
        version=owner.version,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        where_to_get=_fact(owner, "Home-page") or f"pip install {owner.metadata['Name']}",
        licence=_fact(owner, "License-Expression", "License") or "not stated",
    )


def _fact(owner: Distribution, *names: str) -> str | None:
    """Return the first of the metadata fields ``names`` that ``owner`` has, only the first line.

    Some packages put the full text of a licence into a field.
    """
    values = (owner.metadata[name].strip() for name in names if name in owner.metadata)
    return next((value.splitlines()[0] for value in values if value), None)


def _mapped() -> frozenset[Path]:
    """Return the libraries mapped into this process; empty if the kernel provides no list.

    Every executable mapping counts as a library, regardless of the file name. Deleted files are
    still listed by name.
    """
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return frozenset()
    fields = (line.split(maxsplit=5) for line in lines if line.count("/") > 1)
    return frozenset(
        Path(path) for _, access, *_, path in fields if "x" in access or _LIBRARY.search(path)
    )


def _closure(names: Iterable[str], *, extras: bool = False) -> set[str]:
    """Return the normalised ``names`` and all required packages, as far as installed.

    ``extras``: packages required by any extra of ``names`` count, too; deeper in the dependency
    tree, only requested extras count.
    """
    found: dict[str, set[str]] = {}
    queue = [(normalised(name), {_EVERY} if extras else set()) for name in names]
    while queue:
        name, asked = queue.pop()
        if version_of(name) is None or (name in found and asked <= found[name]):
            continue
        asked = found[name] = found.get(name, set()) | asked
        queue += [
            (normalised(needed.name), needed.extras)
            for needed in requirements(name)
            if _EVERY in asked or any(applies(needed, extra) for extra in ("", *asked))
        ]
    return set(found)
