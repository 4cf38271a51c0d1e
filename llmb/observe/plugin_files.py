"""List the files of the plugin that this process has loaded (rule S1)."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from llmb.observe import executed_code
from llmb.plugin.discovery import source_root
from llmb.records.run_record import FileDigest


def loaded_sources(module_name: str) -> tuple[FileDigest, ...]:
    """Return the Python files loaded from the package of ``module_name``, by relative path."""
    root = source_root(module_name)
    files = {file.resolve() for file in loaded_files(root.package) if file.suffix == ".py"}
    return tuple(_file_digest(file, root.folder) for file in sorted(files))


def loaded_otherwise(module_name: str) -> tuple[str, ...]:
    """Return the loaded Python files that ran other code than the file contains."""
    root = source_root(module_name)
    files = {file.resolve() for file in loaded_files(root.package) if file.suffix == ".py"}
    found = executed_code.other_than_shown(sorted(files))
    return tuple(file.relative_to(root.folder).as_posix() for file in found)


def loaded_files(package: str) -> Iterator[Path]:
    """Yield the file of every imported module of ``package``, such as ``vendor_x.kernels``."""
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
