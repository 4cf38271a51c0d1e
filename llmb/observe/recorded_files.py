"""Find the package of a file that lies elsewhere, because the package's folder holds a link to it.

Example: ``uv pip install --link-mode=symlink`` installs each file as a link into uv's cache. Python
imports the file from the package's folder; the linker names the place in the cache.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from llmb.plugin.discovery import packages

#: The installed packages before any code of a plugin. Later a plugin can put a folder in front of
#: ``sys.path``, with a package of its own that is called ``torch``.
_AT_FIRST = packages()
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
            real = os.path.realpath  # a loop of links raises no error
            same_name = self._called(path.name)
            self._really[path.name] = {Path(real(one.place)): one for one in same_name}
        found = self._really[path.name].get(path)
        return found if found is not None and _has(path, found.digest) else None

    def belongs(self, path: Path, owner: str) -> bool:
        """Tell whether the package ``owner`` was installed with the file at ``path``.

        ``owner``: a normalised name. A file of Python must have the recorded content. A package
        without a list of files, such as Debian's, has all files in the folder of packages; a
        package installed in place has all files of its source folder. Generated code lies in no
        file, only in the name of one: torch/x.py:codegen(f).
        """
        package = _AT_FIRST.get(owner)
        if package is None:
            return False
        source = source_of(package)
        if source is not None and path.is_relative_to(source):
            return True
        folder = Path(str(package.locate_file(""))).resolve()
        if not path.is_relative_to(folder):
            return False
        if owner not in self._digests:
            self._digests[owner] = dict(_rows(package))
        digests = self._digests[owner]
        if not digests:
            return True
        digest = digests.get(path.relative_to(folder).as_posix())
        if digest is None and not path.exists():
            return True
        return digest is not None and (path.suffix != ".py" or _has(path, digest))

    def listed(self, owner: str) -> Iterator[tuple[str, Path]]:
        """Yield name and place of each file in the list of the package ``owner``.

        A package without a list has the modules that Python imports at its start, if they lie in
        the folder of the package and no package lists them. Example: ``sitecustomize.py``.
        """
        package = _AT_FIRST.get(owner)
        if package is None:
            return
        names = [name for name, _ in _rows(package)]
        folder = Path(str(package.locate_file("")))
        if not names:
            at_start = ("sitecustomize.py", "usercustomize.py")
            listed = {one.place for n in at_start for one in self._called(n)}
            names = [n for n in at_start if (folder / n).is_file() and folder / n not in listed]
        yield from ((name, folder / name) for name in names)

    def _called(self, last: str) -> Iterator[RecordedFile]:
        """Yield each file whose name ends in ``last``, recorded inside a folder with a digest."""
        for owner, package, name, digest in self._by_last_name.get(last, ()):
            inside = not (PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts)
            if inside and digest.startswith(_SHA256):
                yield RecordedFile(owner, name, Path(str(package.locate_file(name))), digest)

    @cached_property
    def _digests(self) -> dict[str, Mapping[str, str]]:
        """File -> recorded digest, by package."""
        return {}

    @cached_property
    def _really(self) -> dict[str, dict[Path, RecordedFile]]:
        """Files by real place, for the last parts of names that were asked for so far."""
        return {}

    @cached_property
    def _by_last_name(self) -> dict[str, list[tuple[str, Distribution, str, str]]]:
        """Owner, package, name and digest of all recorded files, by the last part of the name.

        No paths: they would take 1.5 s for 57,000 files, in place of 0.2 s.
        """
        found: dict[str, list[tuple[str, Distribution, str, str]]] = {}
        for owner, package in packages().items():
            for name, digest in _rows(package):
                last = name.rpartition("/")[2]
                found.setdefault(last, []).append((owner, package, name, digest))
        return found


def source_of(package: Distribution) -> Path | None:
    """Return the source folder of a package installed in place, None for other packages."""
    try:
        described = json.loads(package.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    url = urlsplit(described.get("url", ""))
    in_place = described.get("dir_info", {}).get("editable") and url.scheme == "file"
    return Path(unquote(url.path)).resolve() if in_place else None


def _rows(package: Distribution) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each file in the list of a package; the digest may be empty."""
    for row in csv.reader((package.read_text("RECORD") or "").splitlines()):
        name, digest = (*row, "", "")[:2]
        yield name, digest


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
