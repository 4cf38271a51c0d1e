"""The files of an untrusted zip, read into memory within limits; never extracted.

Stricter than the format: only a zip that all readers take for the same files is read. The members
lie one after the other from the first byte, then follow the directory and the end record, without
other bytes. Both headers of a member must agree. (Format: PKWARE, APPNOTE.TXT 6.3.10.)
"""

from __future__ import annotations

import io
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from llmb.errors import BundleRefusedError
from llmb.records import member_names
from llmb.records.members import MAX_FILES, MAX_TOTAL_BYTES, Basket, read_file

MAX_RATIO = 200
#: Largest archive of stored members: the total size and headers.
_MAX_ARCHIVE_BYTES = MAX_TOTAL_BYTES + 4 * 2**20
#: zipfile builds an object for every header before anybody can count them.
_MAX_DIRECTORY_BYTES = 2 * 2**20

#: APPNOTE 4.3.16: signature, four numbers of disks and entries, size and place of the directory,
#: length of the comment.
_END = struct.Struct("<4s4H2LH")
#: APPNOTE 4.3.7: signature, version, flags, method, time, date, crc, two sizes, two lengths.
_LOCAL = struct.Struct("<4s5H3L2H")
#: APPNOTE 4.4.4: the level of compression, and the flag of UTF-8 names.
_PLAIN_FLAGS = 0x0002 | 0x0004 | 0x0800
_UTF8_FLAG, _ENCRYPTED, _DESCRIPTOR = 0x0800, 0x0001 | 0x0040 | 0x2000, 0x0008
#: Extra fields that give another size or name: ZIP64, Info-ZIP's Unicode path and comment.
_AMBIGUOUS_EXTRA = frozenset({0x0001, 0x7075, 0x6375})
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def read_zip(path: Path) -> dict[str, bytes]:
    """Return name -> bytes of every member of the zip at ``path``.

    Raises:
        UsageError: no such file.
        BundleRefusedError: not a sound zip, or a zip that two readers may read differently;
            encrypted, a link or device, a bad or doubled name, a wrong size or checksum, a bomb.
    """
    return read_bytes(read_file(path, _MAX_ARCHIVE_BYTES), str(path))


def read_bytes(raw: bytes, name: str) -> dict[str, bytes]:
    """Return name -> bytes of every member of the zip ``raw``; ``name`` is for messages.

    Raises:
        BundleRefusedError: as ``read_zip``.
    """
    try:
        return _read(raw)
    except _BROKEN as error:
        raise BundleRefusedError(f"{name!r} is not a sound zip: {error}") from None


def _read(raw: bytes) -> dict[str, bytes]:
    directory = _directory(raw)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = archive.infolist()
    if len(members) != directory.entries:
        raise zipfile.BadZipFile(f"{directory.entries} members declared, {len(members)} there")
    names = [_name(member) for member in members]
    member_names.check(
        [name for name, member in zip(names, members, strict=True) if not member.is_dir()],
        [name.rstrip("/") for name, member in zip(names, members, strict=True) if member.is_dir()],
    )
    basket, place = Basket(), 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset != place:
            raise BundleRefusedError(f"{member.filename!r} overlaps others, or follows a gap")
        _check_kind(member)
        start = _data_start(raw, member)
        place = start + member.compress_size
        if place > directory.place:
            raise BundleRefusedError(f"{member.filename!r} reaches into the directory")
        if member.is_dir():
            continue
        basket.expect(member.filename, member.file_size)
        content = _unpack(memoryview(raw)[start:place], member)
        basket.add(member.filename, content, member.file_size)
    if place != directory.place:
        raise BundleRefusedError("something lies between the last member and the directory")
    return basket.files


@dataclass(frozen=True)
class _Directory:
    """The location of a zip's directory, by the last bytes of the zip."""

    entries: int
    place: int


def _directory(raw: bytes) -> _Directory:
    if len(raw) < _END.size or not raw.startswith(b"PK"):
        raise zipfile.BadZipFile("it does not begin like one, or is cut off")
    signature, disk, disk_of, here, entries, size, place, comment = _END.unpack(raw[-_END.size :])
    if signature != b"PK\x05\x06" or comment:
        raise zipfile.BadZipFile("it does not end with its directory: a comment, more, or less")
    if disk or disk_of or here != entries:
        raise BundleRefusedError("the zip is one of several parts")
    if entries > MAX_FILES:
        raise BundleRefusedError(f"the zip lists more than {MAX_FILES} files")
    if size > _MAX_DIRECTORY_BYTES:
        raise BundleRefusedError(f"the zip's directory has {size} bytes")
    if place + size != len(raw) - _END.size:  # as with a ZIP64 directory in between
        raise zipfile.BadZipFile("its directory is not where it says")
    return _Directory(entries, place)


def _name(member: zipfile.ZipInfo) -> str:
    name = member.filename
    # zipfile cuts a name at a zero byte and turns the system's separator into "/".
    if name != member.orig_filename:
        raise BundleRefusedError(f"path {member.orig_filename!r} reads as {name!r}")
    if not name.isascii() and not member.flag_bits & _UTF8_FLAG:
        raise BundleRefusedError(f"path {name!r} does not say in which encoding it is")
    return name


def _check_kind(member: zipfile.ZipInfo) -> None:
    name, kind = member.filename, stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFDIR if member.is_dir() else stat.S_IFREG):
        raise BundleRefusedError(f"{name!r} is a link or device, not a file")
    if member.is_dir() and (member.file_size or member.compress_size):
        raise BundleRefusedError(f"{name!r} is a folder with content")
    if member.flag_bits & _ENCRYPTED:
        raise BundleRefusedError(f"{name!r} is encrypted")
    if member.flag_bits & _DESCRIPTOR:
        raise BundleRefusedError(f"{name!r} has its sizes behind it: pack without streaming")
    if member.flag_bits & ~_PLAIN_FLAGS:
        raise BundleRefusedError(f"{name!r} has flags {member.flag_bits:#06x}")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise BundleRefusedError(f"{name!r} is compressed by method {member.compress_type}")
    if member.comment:
        raise BundleRefusedError(f"{name!r} has a comment, which no digest covers")
    if _extra_ids(member.extra) & _AMBIGUOUS_EXTRA:
        raise BundleRefusedError(f"{name!r} has an extra field with another size or name")


def _extra_ids(extra: bytes) -> set[int]:
    found, place = set(), 0
    while place < len(extra):
        kind, size = struct.unpack_from("<2H", extra, place)
        found.add(kind)
        place += 4 + size
    if place != len(extra):
        raise zipfile.BadZipFile("an extra field is cut off")
    return found


def _data_start(raw: bytes, member: zipfile.ZipInfo) -> int:
    """Return the start of the data of ``member``, after a check that both headers agree."""
    at = member.header_offset
    signature, _, flags, method, _, _, crc, packed, size, name_length, extra_length = (
        _LOCAL.unpack_from(raw, at)
    )
    at += _LOCAL.size
    encoding = "utf-8" if flags & _UTF8_FLAG else "ascii"
    name = raw[at : at + name_length].decode(encoding)
    here = (signature, flags, method, crc, packed, size, name)
    there = (
        b"PK\x03\x04",
        member.flag_bits,
        member.compress_type,
        member.CRC,
        member.compress_size,
        member.file_size,
        member.filename,
    )
    if here != there:
        raise BundleRefusedError(f"the two headers of {member.filename!r} do not agree")
    if _extra_ids(raw[at + name_length : at + name_length + extra_length]) & _AMBIGUOUS_EXTRA:
        raise BundleRefusedError(f"{name!r} has an extra field with another size or name")
    start: int = at + name_length + extra_length
    return start


def _unpack(data: memoryview, member: zipfile.ZipInfo) -> bytes:
    """Return the content of ``member``, all of ``data`` and no byte more than declared."""
    name = member.filename
    if member.file_size > MAX_RATIO * max(member.compress_size, 1):
        raise BundleRefusedError(f"{name!r} unpacks to more than {MAX_RATIO} times its size")
    if member.compress_type == zipfile.ZIP_STORED:
        content = bytes(data)
    else:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpacker.decompress(data, member.file_size + 1)
        if not unpacker.eof or unpacker.unused_data or unpacker.unconsumed_tail:
            raise BundleRefusedError(f"{name!r} has another size than it declares")
    if zlib.crc32(content) != member.CRC:
        raise BundleRefusedError(f"{name!r} has another checksum than it declares")
    return content
