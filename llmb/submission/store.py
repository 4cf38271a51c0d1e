"""Writes bundles to disk, each in one step: a crash leaves the old state or the new state."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from llmb.records.bundle import Bundle, read_partly
from llmb.submission.manifest import zip_bytes


def zip_path(target: Path) -> Path:
    """Return the path of the zip of the bundle in folder ``target``."""
    return target.with_name(f"{target.name}.zip")


def put(target: Path, bundle: Bundle, zip: bool) -> None:
    """Write ``bundle`` as folder ``target``, and the zip if requested or already on disk.

    An existing folder holds the same bundle: only missing signatures are added.
    """
    if not target.exists():
        write_folder(target, bundle.files)
    for name, content in bundle.signatures.items():
        if not (target / name).exists():
            (target / name).parent.mkdir(exist_ok=True)
            write_file(target / name, content)
    if zip or zip_path(target).exists():
        write_file(zip_path(target), zip_bytes(read_partly(target).files))


def write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    """Write ``files`` as the new folder ``target``, in one step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".llmb-", dir=target.parent))
    try:
        for name, content in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(content)
        draft.chmod(0o755)  # mkdtemp lets only the owner read the folder
        os.rename(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_file(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` in one step, unless ``target`` has the content already."""
    if target.exists() and target.read_bytes() == content:
        return
    draft = target.with_name(f".{target.name}.new")
    draft.write_bytes(content)
    os.replace(draft, target)
