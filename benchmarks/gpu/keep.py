"""Keeps finished stages in one folder: flat zips and a summary, each file whole at any second.

A lent machine brings back at most 8 files of 16 MiB, 64 MiB together, and kills without warning.
So every file is written under a temporary name and renamed: a kill leaves the file before or the
file after, never half a file. The files: ``summary.json``, ``summary.txt``, ``results.zip``, and
``results-2.zip`` to ``results-4.zip`` where one zip would become too large; while one is written,
a ``.part`` beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20


@dataclass
class Keeper:
    """The folder that is brought back. ``zip_bytes`` is the limit of one zip.

    ``bundle_bytes``: a bundle (about 14 MB) is left out where all zips would become larger than
    that. Records, audits and logs of later stages (about 50 kB a stage) have room beyond it, and a
    ``.part`` of 16 MiB does not lift the folder over 64 MiB.
    """

    folder: Path
    zip_bytes: int = 16 * MIB - MIB // 16
    bundle_bytes: int = 46 * MIB
    most_zips: int = 4
    #: Names of what did not fit.
    left_out: list[str] = field(default_factory=list)
    #: What could not be written yet (a full disk): it goes in with the next stage.
    waiting: dict[str, bytes] = field(default_factory=dict)
    _zips: int = 1

    def add(self, files: Mapping[str, bytes]) -> None:
        """Put the files of a finished stage into the zip, all of them at once.

        Raises:
            OSError: the folder cannot be written; the zips are as before, and the files wait.
        """
        self.waiting |= files
        while self.waiting:
            if self._append(self.waiting):
                self.waiting = {}
            elif self._path.exists() and self._zips < self.most_zips:
                self._zips += 1
            else:  # one file less at a time, the largest first, until the rest fits
                largest = max(self.waiting, key=lambda name: len(self.waiting[name]))
                self._leave_out(largest)
                del self.waiting[largest]

    def add_bundle(self, name: str, data: bytes) -> None:
        """Put a bundle into a zip where there is room for it, or note that there is none.

        Raises:
            OSError: as ``add``.
        """
        there = sum(file.stat().st_size for file in self.folder.glob("results*.zip"))
        if len(data) > self.zip_bytes or there + len(data) > self.bundle_bytes:
            self._leave_out(name)
        else:
            self.add({name: data})

    def summarise(self, summary: Mapping[str, object], text: str) -> None:
        """Replace ``summary.json`` and ``summary.txt``; both name what was left out of the zips.

        Raises:
            OSError: the folder cannot be written; each summary is the one before or the new one.
        """
        lines = [f"left out, no room in the zips: {', '.join(self.left_out)}"] * bool(self.left_out)
        data = json.dumps({**summary, "left_out": self.left_out}, indent=1) + "\n"
        self._replace("summary.json", data)
        self._replace("summary.txt", "\n".join([text, *lines]) + "\n")

    @property
    def _path(self) -> Path:
        return self.folder / ("results.zip" if self._zips == 1 else f"results-{self._zips}.zip")

    def _append(self, files: Mapping[str, bytes]) -> bool:
        """Add ``files`` to the present zip; False, and nothing changed, where they do not fit."""
        part = self._part(self._path.name)
        try:
            if self._path.exists():
                shutil.copyfile(self._path, part)
            with zipfile.ZipFile(part, "a", zipfile.ZIP_DEFLATED) as archive:
                for name, data in files.items():
                    packed = zipfile.ZIP_STORED if name.endswith(".zip") else None
                    archive.writestr(name, data, packed)
            fits = part.stat().st_size <= self.zip_bytes
            if fits:
                os.replace(part, self._path)
            return fits
        finally:
            part.unlink(missing_ok=True)

    def _leave_out(self, name: str) -> None:
        if name not in self.left_out:
            self.left_out.append(name)

    def _replace(self, name: str, text: str) -> None:
        part = self._part(name)
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, self.folder / name)
        finally:
            part.unlink(missing_ok=True)

    def _part(self, name: str) -> Path:
        part = self.folder / f"{name}.part"
        part.unlink(missing_ok=True)  # of a call that was killed
        return part
