"""The digests of the reference: what they are, and what ``PINS.sha256`` says they must be."""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
PINS_FILE = FOLDER / "PINS.sha256"


def actual_digests() -> dict[str, str]:
    """Return path -> sha256 of every file below the folder, as they lie on disk.

    Every file, not only ``*.py``: a package or a compiled module could shadow a pinned file. Only
    byte-code caches are left out; Python checks those against the sources.
    """
    files = sorted(file for file in FOLDER.rglob("*") if file.is_file() and file != PINS_FILE)
    return {
        file.relative_to(FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if "__pycache__" not in file.parts
    }


def pinned_digests() -> dict[str, str]:
    """Return path -> sha256 as pinned (the format of the ``sha256sum`` command)."""
    lines = PINS_FILE.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def reference_digest(digests: dict[str, str]) -> str:
    """Return one sha256 for a set of files: of its listing in ``sha256sum`` format, by name."""
    listing = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(listing.encode()).hexdigest()
