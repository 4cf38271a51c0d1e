"""The files of an untrusted folder, read into memory within limits; ``zip_members`` reads zips."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import member_names

MAX_FILES = 2000
MAX_FILE_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20
MAX_FOLDER_DEPTH = 16
#: Most entries to look at, of all kinds, folders and unwanted files included.
_MAX_ENTRIES = 10 * MAX_FILES
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a fifo would wait for a writer for ever; a terminal could become the controlling terminal.
_OPEN_FILE = _OPEN | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_OPEN_FOLDER = _OPEN | getattr(os, "O_DIRECTORY", 0)


@dataclass
class Basket:
    """Collected files, counted against the limits."""

    files: dict[str, bytes] = field(default_factory=dict)
    _total: int = 0
    _count: int = 0
    _entries: int = 0

    def list(self, folder: int) -> list[str]:
        """Return the names in an open folder, sorted, unless there are too many."""
        names = []
        with os.scandir(folder) as entries:  # one by one: a folder may hold millions
            for entry in entries:
                names.append(entry.name)
                self._entries += 1
                if self._entries > _MAX_ENTRIES:
                    raise BundleRefusedError(f"there are more than {_MAX_ENTRIES} entries")
        return sorted(names)

    def expect(self, name: str, size: int) -> None:
        """Refuse a file above a limit before reading; ``size`` in bytes, as declared."""
        if size > MAX_FILE_BYTES:
            raise BundleRefusedError(f"{name!r} has {size} bytes, more than {MAX_FILE_BYTES}")
        if self._total + size > MAX_TOTAL_BYTES:
            raise BundleRefusedError(f"{name!r} takes the total above {MAX_TOTAL_BYTES} bytes")
        if self._count >= MAX_FILES:
            raise BundleRefusedError(f"{name!r} is one file more than {MAX_FILES}")

    def add(self, name: str, content: bytes, size: int) -> None:
        """Take in a file that was expected to have ``size`` bytes."""
        if len(content) != size:
            raise BundleRefusedError(f"{name!r} has another size than the {size} bytes declared")
        self._total += size
        self._count += 1
        self.files[name] = content

    def count(self, name: str, size: int) -> None:
        """Count a file of ``size`` bytes without content, or refuse the file."""
        self.expect(name, size)
        self._total += size
        self._count += 1


def read_file(path: Path, limit: int = MAX_FILE_BYTES, *, follow: bool = True) -> bytes:
    """Return a regular file named by the user, up to ``limit`` bytes.

    Args:
        path: the path of the file.
        limit: bytes.
        follow: read the target of a link; else a link is refused.

    Raises:
        UsageError: no such file, or not readable.
        BundleRefusedError: not a regular file, or too large.
    """
    try:
        descriptor = os.open(os.path.realpath(path) if follow else path, _OPEN_FILE)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP and not follow else error.strerror
        raise UsageError(f"cannot read {str(path)!r}: {why}") from None
    return _read_open(descriptor, str(path), limit)


def read_folder(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, bytes]:
    """Return name -> bytes of every ``wanted`` file below ``path``, names with forward slashes.

    Raises:
        UsageError: ``path`` is not a readable folder.
        BundleRefusedError: a link, device, fifo or socket, a bad name, a limit passed, or a file
            that changed during reading.
    """
    basket = Basket()
    try:
        descriptor = os.open(os.path.realpath(path), _OPEN_FOLDER)
    except OSError as error:
        raise UsageError(f"cannot read the folder {str(path)!r}: {error.strerror}") from None
    try:
        _walk(descriptor, "", basket, wanted)
    finally:
        os.close(descriptor)
    member_names.check(basket.files)
    return basket.files


def _walk(folder: int, prefix: str, basket: Basket, wanted: Callable[[str], bool]) -> None:
    if prefix.count("/") > MAX_FOLDER_DEPTH:
        raise BundleRefusedError(f"folder {prefix!r} is nested deeper than {MAX_FOLDER_DEPTH}")
    for entry in basket.list(folder):
        name = prefix + entry
        try:
            mode = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                below = os.open(entry, _OPEN_FOLDER, dir_fd=folder)
                try:
                    _walk(below, name + "/", basket, wanted)
                finally:
                    os.close(below)
            elif wanted(name):
                _take(folder, entry, name, mode, basket)
        except OSError as error:
            raise BundleRefusedError(f"{name!r} cannot be read: {error.strerror}") from None


def _take(folder: int, entry: str, name: str, mode: int, basket: Basket) -> None:
    if not stat.S_ISREG(mode):
        raise BundleRefusedError(f"{name!r} is a link, device, fifo or socket, not a file")
    member_names.check([name])
    descriptor = os.open(entry, _OPEN_FILE, dir_fd=folder)
    basket.expect(name, os.fstat(descriptor).st_size)
    content = _read_open(descriptor, name, MAX_FILE_BYTES)
    basket.add(name, content, len(content))


def _read_open(descriptor: int, name: str, limit: int) -> bytes:
    """Return the content of an open descriptor, and close the descriptor."""
    before = os.fstat(descriptor)
    if not stat.S_ISREG(before.st_mode):
        os.close(descriptor)
        raise BundleRefusedError(f"{name!r} is not a regular file")
    with open(descriptor, "rb") as stream:
        if before.st_size > limit:
            raise BundleRefusedError(f"{name!r} has {before.st_size} bytes, more than {limit}")
        content = stream.read(before.st_size + 1)
        after = os.fstat(descriptor)
    if len(content) != before.st_size or before.st_mtime_ns != after.st_mtime_ns:
        raise BundleRefusedError(f"{name!r} changed while it was read: try again")
    return content
