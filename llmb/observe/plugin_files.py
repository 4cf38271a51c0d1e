"""Which files of the plugin this process has loaded (rule S1)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from importlib.metadata import metadata
from pathlib import Path

from llmb.plugin.discovery import source_root
from llmb.records.run_record import ClosedComponent, FileDigest


def loaded_sources(module_name: str) -> tuple[FileDigest, ...]:
    """Return the Python files loaded from the package of ``module_name``, by relative path."""
    root = source_root(module_name)
    files = {file.resolve() for file in _loaded(root.package) if file.suffix == ".py"}
    return tuple(_file_digest(file, root.folder) for file in sorted(files))


def closed_components(module_name: str, distribution: str) -> tuple[ClosedComponent, ...]:
    """Return the compiled extension modules loaded from the package of ``module_name``."""
    root = source_root(module_name)
    files = {file.resolve() for file in _loaded(root.package) if file.suffix != ".py"}
    digests = [_file_digest(file, root.folder) for file in sorted(files)]
    return tuple(
        ClosedComponent(
            name=digest.path,
            version=_fact(distribution, "Version"),
            sha256=digest.sha256,
            bytes=digest.bytes,
            where_to_get=_fact(distribution, "Home-page") or f"pip install {distribution}",
            licence=_fact(distribution, "License-Expression", "License") or "not stated",
        )
        for digest in digests
    )


def _fact(distribution: str, *names: str) -> str | None:
    """Return the first of the metadata fields ``names`` that ``distribution`` has."""
    facts = metadata(distribution)
    return next((facts[name] for name in names if name in facts), None)


def _loaded(package: str) -> Iterator[Path]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and (name == package or name.startswith(f"{package}.")):
            yield Path(file)


def _file_digest(file: Path, folder: Path) -> FileDigest:
    data = file.read_bytes()
    return FileDigest(
        path=file.relative_to(folder).as_posix(),
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
    )
