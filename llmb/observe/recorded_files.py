"""Find the package of a file that lies elsewhere, because the package's folder holds a link to it.

Example: ``uv pip install --link-mode=symlink`` installs each file as a link into uv's cache. Python
imports the file from the package's folder; the linker names the place in the cache.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from llmb.plugin.discovery import packages

_SHA256 = "sha256="
_CHUNK = 2**20  # bytes


@dataclass(frozen=True)
class RecordedFile:
    """A file as the list of an installed package's files (RECORD) has it."""

    #: Normalised name of the package.
    owner: str
    #: Name in the folder that the package is installed in, such as ``numpy/__init__.py``.
    name: str
    #: Where Python imports the file.
    place: Path
    #: As in RECORD: ``sha256=`` and the digest in base64.
    digest: str


class RecordedFiles:
    """The files that the installed packages record."""

    def at(self, path: Path) -> RecordedFile | None:
        """Return the recorded file that really lies at ``path``, without any link in the path.

        None if no package records the file, or if the content is not the recorded content: a link
        from a package's folder makes no file the package's.
        """
        if path.name not in self._really:
            same_name = self._by_last_name.get(path.name, ())
            real = os.path.realpath  # a loop of links raises no error
            self._really[path.name] = {Path(real(one.place)): one for one in same_name}
        found = self._really[path.name].get(path)
        return found if found is not None and _has(path, found.digest) else None

    @cached_property
    def _really(self) -> dict[str, dict[Path, RecordedFile]]:
        """Files by real place, for the last parts of names that were asked for so far."""
        return {}

    @cached_property
    def _by_last_name(self) -> dict[str, list[RecordedFile]]:
        """All recorded files (0.1 s for 20,000), by the last part of the name."""
        found: dict[str, list[RecordedFile]] = {}
        for one in _recorded():
            found.setdefault(one.place.name, []).append(one)
        return found


def _recorded() -> Iterator[RecordedFile]:
    """Yield each file inside a folder of packages that is recorded with a digest."""
    for owner, package in packages().items():
        for row in csv.reader((package.read_text("RECORD") or "").splitlines()):
            name, digest = (*row, "", "")[:2]
            inside = not (PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts)
            if inside and digest.startswith(_SHA256):
                place = Path(str(package.locate_file(name)))
                yield RecordedFile(owner, name, place, digest)


def _has(path: Path, digest: str) -> bool:
    """Tell whether the file at ``path`` has the ``digest``."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                found.update(data)
    except OSError:
        return False
    text = base64.urlsafe_b64encode(found.digest()).decode().rstrip("=")
    return digest == f"{_SHA256}{text}"
