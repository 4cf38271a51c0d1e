"""How an attack is written down: what it starts from, what it changes, what refuses it."""

from __future__ import annotations

import io
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785

from llmb.submission import page
from tests import builders
from tests.builders import with_manifest

Files = dict[str, bytes]
MANIFEST, RECORD = "MANIFEST.json", "record.json"


@dataclass(frozen=True)
class Attack:
    """Makes something hostile in a folder and returns its path; ``reason`` is in the refusal."""

    make: Callable[[Path, Files], Path]
    reason: str
    code: int = 6


ATTACKS: dict[str, Attack] = {}


def honest_run() -> Files:
    """Return the files of an honest bundle, without its manifest."""
    record = builders.make_record(repeats=1)
    return builders.run_files(record) | {"README.md": page.page_bytes(record)}


def packed(name: str, reason: str, change: Callable[[Files], bytes]) -> None:
    """Add an attack that is a zip; ``change`` gets the files of a bundle, manifest included."""

    def make(folder: Path, files: Files) -> Path:
        path = folder / "bundle.zip"
        path.write_bytes(change(with_manifest(files)))
        return path

    ATTACKS[name] = Attack(make, reason)


def unpacked(name: str, reason: str, change: Callable[[Path], object]) -> None:
    """Add an attack that is a folder; ``change`` gets the folder of an honest bundle."""

    def make(folder: Path, files: Files) -> Path:
        path = builders.write(folder / "bundle", with_manifest(files))
        change(path)
        return path

    ATTACKS[name] = Attack(make, reason)


def forged(name: str, reason: str, change: Callable[[Files], Mapping[str, bytes]]) -> None:
    """Add an attack under a sound manifest; ``change`` gets files and returns new ones."""

    def make(folder: Path, files: Files) -> Path:
        return builders.write(folder / "bundle", with_manifest({**files, **change(files)}))

    ATTACKS[name] = Attack(make, reason)


def listing(name: str, reason: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Add an attack with another manifest; ``change`` gets its JSON data, and may return bytes."""

    def make(folder: Path, files: Files) -> Path:
        data = json.loads(with_manifest(files)[MANIFEST])
        raw = change(data)
        manifest = raw if isinstance(raw, bytes) else rfc8785.dumps(data)
        return builders.write(folder / "bundle", {**files, MANIFEST: manifest})

    ATTACKS[name] = Attack(make, reason)


def recorded(name: str, reason: str, old: bytes, new: bytes) -> None:
    """Add an attack on the text of the record, under a sound manifest."""

    def change(files: Files) -> Files:
        assert old in files[RECORD], old
        return {RECORD: files[RECORD].replace(old, new, 1)}

    forged(name, reason, change)


def edited(name: str, reason: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Add an attack on the data of the record, its copies and its page edited along."""

    def change(files: Files) -> Files:
        data = json.loads(files[RECORD])
        edit(data)
        text = {RECORD: data, "audit.json": data["audit"], "system.json": data["system"]}
        return {key: json.dumps(part, indent=1).encode() for key, part in text.items()}

    forged(name, reason, change)


def zip_of(members: list[tuple[str | zipfile.ZipInfo, bytes]], method: int = 0) -> bytes:
    """Return a zip of ``members``, whatever their names."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # zipfile warns about a name given twice
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def special(name: str, mode: int) -> zipfile.ZipInfo:
    """Return a member that a Unix would unpack with ``mode``."""
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, mode << 16
    return info


def with_member(name: str) -> Callable[[Files], bytes]:
    """Return what adds a listed member ``name``."""
    return lambda files: zip_of([*with_manifest({**files, name: b"x"}).items()])


def link_of(name: str, target: str) -> Callable[[Path], None]:
    """Return what replaces member ``name`` by a link."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return change
