"""The files of an untrusted folder or zip, read into memory within limits; never extracted."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import member_names

MAX_FILES = 2000
MAX_FILE_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20
MAX_RATIO = 200
MAX_FOLDER_DEPTH = 16
#: An archive of stored members is its total, and headers.
_MAX_ARCHIVE_BYTES = MAX_TOTAL_BYTES + 2**20
_CENTRAL_HEADER = b"PK\x01\x02"
_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Opening a fifo would wait for a writer for ever, a terminal could become the controlling one.
_OPEN_FILE = _OPEN | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_OPEN_FOLDER = _OPEN | getattr(os, "O_DIRECTORY", 0)
_BROKEN_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


class Basket:
    """Files as they come in, counted against the limits."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._total = 0

    def expect(self, name: str, size: int) -> None:
        """Refuse before reading what would pass a limit; ``size`` in bytes, as declared."""
        if size > MAX_FILE_BYTES:
            raise BundleRefusedError(f"{name!r} has {size} bytes, more than {MAX_FILE_BYTES}")
        if self._total + size > MAX_TOTAL_BYTES:
            raise BundleRefusedError(f"{name!r} takes the total above {MAX_TOTAL_BYTES} bytes")
        if len(self.files) >= MAX_FILES:
            raise BundleRefusedError(f"{name!r} is one file more than {MAX_FILES}")

    def add(self, name: str, content: bytes, size: int) -> None:
        """Take in a file that was expected to have ``size`` bytes."""
        if len(content) != size:
            raise BundleRefusedError(f"{name!r} has another size than the {size} bytes declared")
        self._total += size
        self.files[name] = content


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return a regular file named by the user (a link to one is followed), up to ``limit`` bytes.

    Raises:
        UsageError: no such file, or not readable.
        BundleRefusedError: not a regular file, or too large.
    """
    try:
        descriptor = os.open(path.resolve(), _OPEN_FILE)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from None
    return _read_open(descriptor, str(path), limit)


def read_folder(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, bytes]:
    """Return name -> bytes of every ``wanted`` file below ``path``, names with forward slashes.

    Raises:
        UsageError: ``path`` is not a readable folder.
        BundleRefusedError: a link, device, fifo or socket, a bad name, a limit passed, or a file
            that changed while it was read.
    """
    basket = Basket()
    try:
        descriptor = os.open(path.resolve(), _OPEN_FOLDER)
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
    for entry in sorted(os.listdir(folder)):
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
    """Return what an open descriptor holds, and close it."""
    with open(descriptor, "rb") as stream:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise BundleRefusedError(f"{name!r} is not a regular file")
        if before.st_size > limit:
            raise BundleRefusedError(f"{name!r} has {before.st_size} bytes, more than {limit}")
        content = stream.read(before.st_size + 1)
        after = os.fstat(descriptor)
    if len(content) != before.st_size or before.st_mtime_ns != after.st_mtime_ns:
        raise BundleRefusedError(f"{name!r} changed while it was read: try again")
    return content


def read_zip(path: Path) -> dict[str, bytes]:
    """Return name -> bytes of every member of the zip at ``path``.

    Raises:
        UsageError: no such file.
        BundleRefusedError: not a sound zip, encrypted, a link or device, a bad or doubled name,
            a wrong size or checksum, a bomb.
    """
    raw = read_file(path, _MAX_ARCHIVE_BYTES)
    # zipfile builds an object for every header before anybody can count them.
    if raw.count(_CENTRAL_HEADER) > 2 * MAX_FILES:
        raise BundleRefusedError(f"{str(path)!r} lists more than {MAX_FILES} files")
    basket = Basket()
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            members = archive.infolist()
            member_names.check(_file_name(member) for member in members if not member.is_dir())
            for member in members:
                _take_member(archive, member, basket)
    except _BROKEN_ZIP as error:
        raise BundleRefusedError(f"{str(path)!r} is not a sound zip: {error}") from None
    return basket.files


def _file_name(member: zipfile.ZipInfo) -> str:
    # zipfile cuts a name at a zero byte and turns the system's separator into "/".
    if member.filename != member.orig_filename:
        raise BundleRefusedError(f"path {member.orig_filename!r} reads as {member.filename!r}")
    return member.filename


def _take_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, basket: Basket) -> None:
    name, kind = _file_name(member), stat.S_IFMT(member.external_attr >> 16)
    if member.is_dir():
        member_names.check([name.rstrip("/")])
        if member.file_size:
            raise BundleRefusedError(f"{name!r} is a folder with content")
        return
    if kind not in (0, stat.S_IFREG):
        raise BundleRefusedError(f"{name!r} is a link or device, not a file")
    if member.flag_bits & 0x41:
        raise BundleRefusedError(f"{name!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleRefusedError(f"{name!r} is compressed by method {member.compress_type}")
    basket.expect(name, member.file_size)
    if member.file_size > MAX_RATIO * max(member.compress_size, 1):
        raise BundleRefusedError(f"{name!r} unpacks to more than {MAX_RATIO} times its size")
    with archive.open(member) as stream:
        content = stream.read(member.file_size + 1)
    basket.add(name, content, member.file_size)
