"""Which file names a bundle may have: those that mean one file on every system, and look it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from llmb.errors import BundleRefusedError

MAX_CHARACTERS = 240
_FORBIDDEN = frozenset('\\:<>"|?*')
#: Control, format (bidi among them), surrogate, private, unassigned, line and paragraph separator.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_RESERVED = frozenset(
    {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}
    | {f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789¹²³"}
)


def part_fault(part: str) -> str | None:
    """Return why ``part`` cannot be one part of a path on every system, or None if it can."""
    if part in ("", ".", "..") or "/" in part:
        return "is not a name of its own"
    if len(part) > MAX_CHARACTERS:
        return f"has more than {MAX_CHARACTERS} characters"
    if any(unicodedata.category(character) in _INVISIBLE for character in part):
        return "holds a control, bidi or unassigned character"
    if _FORBIDDEN & set(part):
        return 'holds one of \\ : < > " | ? *'
    if unicodedata.normalize("NFC", part) != part:
        return "is not in Unicode normal form C"
    if part[0] == " " or part[-1] in " .":
        return "begins with a space, or ends with a space or dot"
    if part.split(".")[0].rstrip().upper() in _RESERVED:
        return "is reserved on Windows"
    return None


def check(names: Iterable[str]) -> None:
    """Refuse ``names`` unless each is a portable relative path and all of them can coexist.

    Raises:
        BundleRefusedError: a bad path, two that fall together when case or Unicode form is
            ignored (the same name twice among them), or a file used as a folder.
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        _check_path(name)
        other = files.get(_key(name))
        if other is not None:
            raise BundleRefusedError(f"paths {other!r} and {name!r} are one file on some systems")
        files[_key(name)] = name
        parts = name.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            other = folders.setdefault(_key(folder), folder)
            if other != folder:
                raise BundleRefusedError(
                    f"folders {other!r} and {folder!r} are one on some systems"
                )
    for key in files.keys() & folders.keys():
        raise BundleRefusedError(f"{files[key]!r} is a file and used as a folder")


def _key(name: str) -> str:
    """Return what is left of ``name`` when case and compatible characters are made equal."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _check_path(name: str) -> None:
    if len(name) > MAX_CHARACTERS:
        start = name[:40]
        raise BundleRefusedError(f"path {start!r}... has more than {MAX_CHARACTERS} characters")
    if name.startswith("/"):
        raise BundleRefusedError(f"path {name!r} is absolute")
    for part in name.split("/"):
        fault = part_fault(part)
        if fault is not None:
            raise BundleRefusedError(f"path {name!r}: part {part!r} {fault}")
