"""Tags of run directories: local labels, each an empty file ``tags/NAME`` in the run directory.

A tag is no evidence: the tag is no part of ``record.json`` and no part of a bundle. One file per
tag needs no lock and no parser: two writers create or remove two files, a moved run keeps its tags,
and a removed run leaves no tag behind. Several runs may have the same tag, such as ``nightly``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmb.errors import UsageError

#: As in ``bundle``, which loads every model of a record: 0.5 s.
MANIFEST = "MANIFEST.json"
#: Folder of the tags in a run directory.
TAGS = "tags"
#: Name of the latest run in every command; no tag may have the name.
LATEST = "latest"
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
#: Most entries of the folder to read; a run by llmb has a handful.
_MOST = 100
_OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def checked(tag: str) -> str:
    """Return ``tag``. Example: ``nightly``, ``torch-2.9.1``.

    Raises:
        UsageError: ``tag`` is ``latest``, or is no slug of 1 to 64 characters.
    """
    if tag == LATEST:
        raise UsageError(f"the tag {LATEST!r} is refused: the latest run always has this name")
    if not _SLUG.fullmatch(tag):
        raise UsageError(
            f"the tag {tag[:80]!r} is refused: use a-z, 0-9, dots, dashes and underscores, at most "
            "64 characters, such as nightly"
        )
    return tag


def tags_of(run: Path) -> tuple[str, ...]:
    """Return the tags of a run directory, sorted; files with other names do not count."""
    try:
        with _opened(run) as folder, os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST), strict=False)]
    except OSError:
        return ()
    return tuple(sorted(name for name in names if _SLUG.fullmatch(name) and name != LATEST))


def add(run: Path, tag: str) -> None:
    """Give the run directory ``run`` the tag ``tag``; a present tag stays.

    Raises:
        UsageError: ``tag`` is no tag, ``run`` is a bundle, or the file cannot be written.
    """
    name = checked(tag)
    if (run / MANIFEST).exists():
        raise UsageError(f"{run} is a bundle, whose files are exactly those of {MANIFEST}: no tag")
    try:
        (run / TAGS).mkdir(exist_ok=True)
        with _opened(run) as folder:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder))
    except FileExistsError:
        if not stat.S_ISDIR((run / TAGS).lstat().st_mode):
            raise UsageError(f"{run / TAGS} is no folder: remove it") from None
    except OSError as error:
        raise UsageError(f"cannot tag {run} as {name}: {error.strerror}") from error


def remove(run: Path, tag: str) -> None:
    """Take the tag ``tag`` from the run directory ``run``.

    Raises:
        UsageError: the run has no such tag, or the file cannot be removed.
    """
    name = checked(tag)
    try:
        with _opened(run) as folder:
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        has = ", ".join(tags_of(run)) or "no tag"
        raise UsageError(f"{run} has no tag {name} (it has {has})") from None
    except OSError as error:
        raise UsageError(f"cannot take the tag {name} from {run}: {error.strerror}") from error


@contextmanager
def _opened(run: Path) -> Iterator[int]:
    """Open the folder of tags; a link in its place is an error, never followed."""
    descriptor = os.open(run / TAGS, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
