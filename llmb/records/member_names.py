"""File names allowed in a bundle: the same file on every system, without look-alike characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from llmb.errors import BundleRefusedError

MAX_CHARACTERS = 240
_FORBIDDEN = frozenset('\\:<>"|?*')
#: Control, format (bidi among them), surrogate, private, unassigned, line and paragraph separator.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: Letters, marks and symbols without a visible shape: Unicode's Default_Ignorable_Code_Point beyond
#: categories above, and the blank Braille pattern.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
#: Most marks on one letter, as no script stacks more; more marks would cover the lines around.
_MOST_MARKS = 3
_RESERVED = frozenset(
    {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}
    | {f"{port}{digit}" for port in ("COM", "LPT") for digit in "0123456789¹²³"}
)

#: Characters with a meaning in shells, Markdown or HTML, beyond those that no file name may hold.
_MARKUP = frozenset("&`'$;~#%=[]{}")
#: Alphabets with look-alike letters: Unicode Technical Standard 39, section 5.
_LOOK_ALIKE = frozenset({"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"})


def part_fault(part: str) -> str | None:
    """Return why ``part`` cannot be a path part on every system, or None for a valid part."""
    if part in ("", ".", "..") or "/" in part:
        return "is not a name of its own"
    if len(part) > MAX_CHARACTERS:
        return f"has more than {MAX_CHARACTERS} characters"
    if any(unicodedata.category(character) in _INVISIBLE for character in part):
        return "holds a control, bidi or unassigned character"
    if any(_is_blank(character) for character in part):
        return "holds a character that shows nothing"
    if _piles_up(part):
        return f"puts more than {_MOST_MARKS} marks on one letter"
    if _FORBIDDEN & set(part):
        return 'holds one of \\ : < > " | ? *'
    if unicodedata.normalize("NFC", part) != part:
        return "is not in Unicode normal form C"
    if part[0] == " " or part[-1] in " .":
        return "begins with a space, or ends with a space or dot"
    if part.split(".")[0].rstrip().upper() in _RESERVED:
        return "is reserved on Windows"
    return None


def title_fault(text: str) -> str | None:
    """Return why ``text`` cannot be the name of a submitter or system, or None for a valid name.

    The text names a folder and is shown to people, so two names must not look alike.
    """
    if text[:1] in (".", "-"):
        return "begins with a dot or dash"
    fault = part_fault(text)
    if fault is not None:
        return fault
    if "--" in text or any(character in _MARKUP for character in text):
        return "holds one of & ` ' $ ; ~ # % = [ ] { } or two dashes"
    for word in text.split():
        alphabets = {_alphabet(character) for character in word} & _LOOK_ALIKE
        if len(alphabets) > 1:
            return f"mixes letters of {' and '.join(sorted(alphabets))} in one word"
    return None


def check(names: Iterable[str], empty_folders: Iterable[str] = ()) -> None:
    """Refuse ``names`` unless each is a portable relative path and all of them can coexist.

    Args:
        names: the paths of files.
        empty_folders: paths of folders listed without files.

    Raises:
        BundleRefusedError: a bad path, two paths that are equal without case or Unicode form (a
            repeated name included), or a file used as a folder.
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        _check_path(name)
        other = files.get(_key(name))
        if other is not None:
            raise BundleRefusedError(f"paths {other!r} and {name!r} are one file on some systems")
        files[_key(name)] = name
        _add_folders(name.split("/")[:-1], folders)
    for name in empty_folders:
        _check_path(name)
        _add_folders(name.split("/"), folders)
    for key in files.keys() & folders.keys():
        raise BundleRefusedError(f"{files[key]!r} is a file and used as a folder")


def _add_folders(parts: list[str], folders: dict[str, str]) -> None:
    for end in range(1, len(parts) + 1):
        folder = "/".join(parts[:end])
        other = folders.setdefault(_key(folder), folder)
        if other != folder:
            raise BundleRefusedError(f"folders {other!r} and {folder!r} are one on some systems")


def _is_blank(character: str) -> bool:
    other_space = character != " " and unicodedata.category(character) == "Zs"
    return other_space or character in _BLANK


def _piles_up(part: str) -> bool:
    marks = 0
    for character in unicodedata.normalize("NFD", part):
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks > _MOST_MARKS:
            return True
    return False


def _alphabet(character: str) -> str:
    return unicodedata.name(character, "").split(" ")[0]


def _key(name: str) -> str:
    """Return ``name`` with case and compatible characters made equal, for comparison."""
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
