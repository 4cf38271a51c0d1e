"""Zips that two readers would read differently, and names in them."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

from llmb.submission.manifest import zip_bytes
from tests.attacks.kinds import (
    Files,
    packed,
    special,
    with_member,
    zip_of,
)
from tests.builders import with_manifest


def directory_of(raw: bytes) -> tuple[int, int]:
    """Return where the directory of a zip begins and ends."""
    size, place = struct.unpack_from("<2L", raw, len(raw) - 10)
    return place, place + size


def ended(body: bytes, directory: bytes, entries: int, comment: bytes = b"") -> bytes:
    """Return a zip of ``body`` and ``directory``, with an end that fits."""
    numbers = (0, 0, entries, entries, len(directory), len(body), len(comment))
    return body + directory + struct.pack("<4s4H2LH", b"PK\x05\x06", *numbers) + comment


def repacked(
    files: Files, body: Callable[[bytes], bytes], directory: Callable[[bytes], bytes]
) -> bytes:
    """Return the zip of ``files`` with its two parts changed."""
    raw = zip_bytes(files)
    begin, end = directory_of(raw)
    return ended(body(raw[:begin]), directory(raw[begin:end]), len(files))


def patched(signature: bytes, offset: int, form: str, value: int) -> Callable[[Files], bytes]:
    """Return what overwrites one number in the first header with ``signature``."""

    def change(files: Files) -> bytes:
        raw = bytearray(zip_bytes(files))
        struct.pack_into(form, raw, raw.find(signature) + offset, value)
        return bytes(raw)

    return change


def flagged(flag: int) -> Callable[[Files], bytes]:
    """Return what sets a flag of the first member in both of its headers."""

    def change(files: Files) -> bytes:
        raw = bytearray(zip_bytes(files))
        for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            raw[raw.find(signature) + offset] |= flag & 255
            raw[raw.find(signature) + offset + 1] |= flag >> 8
        return bytes(raw)

    return change


def with_info(**fields: Any) -> Callable[[Files], bytes]:
    """Return what gives one member other fields in the directory."""

    def change(files: Files) -> bytes:
        info = zipfile.ZipInfo("sources.diff")
        for field, value in fields.items():
            setattr(info, field, value)
        rest = [(name, raw) for name, raw in files.items() if name != "sources.diff"]
        return zip_of([*rest, (info, files["sources.diff"])])

    return change


def overlapping(files: Files) -> bytes:
    """Return a zip with one member inside the data of another one."""
    inner = zip_bytes({"inner": b"hidden"})
    begin, end = directory_of(inner)
    raw = zip_bytes({**files, "outer": inner[:begin]})
    first, last = directory_of(raw)
    header = bytearray(inner[begin:end])
    struct.pack_into("<L", header, 42, raw.find(inner[:begin]))
    return ended(raw[:first], raw[first:last] + header, len(files) + 2)


def doubled_entry(files: Files) -> bytes:
    """Return a zip whose directory lists its first member twice."""
    raw = zip_bytes(files)
    begin, end = directory_of(raw)
    second = raw.find(b"PK\x01\x02", begin + 4)
    return ended(raw[:begin], raw[begin:second] + raw[begin:end], len(files) + 1)


def hidden_in_stream(files: Files) -> bytes:
    """Return a zip with a member whose compressed data end before the member does."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = b"text " * 100
    data = packer.compress(content) + packer.flush() + b"hidden"
    name, crc = b"sources.diff", zlib.crc32(content)
    fields = (0, 8, 0, 33, crc, len(data), len(content), len(name), 0)
    raw = zip_bytes({key: value for key, value in files.items() if key != "sources.diff"})
    begin, end = directory_of(raw)
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 20, *fields) + name + data
    central = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, *fields, 0, 0, 0, 0, begin) + name
    return ended(raw[:begin] + local, raw[begin:end] + central, len(files))


def zip64_end(files: Files) -> bytes:
    """Return a zip with a second end, of ZIP64, that says something else."""
    raw = zip_bytes(files)
    begin, end = directory_of(raw)
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, end - begin, begin)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    return raw[:end] + record + locator + raw[end:]


def cut_name(files: Files) -> bytes:
    """Return a zip with a member whose name holds a zero byte."""
    return zip_of([*with_manifest({**files, "logZtxt": b""}).items()]).replace(b"logZ", b"log\0")


def gap(files: Files) -> bytes:
    """Return a zip with data of no member before its directory."""
    return repacked(files, lambda body: body + b"hidden", lambda directory: directory)


def shifted(files: Files) -> bytes:
    """Return a zip with data of no member before its first one."""
    raw = zip_bytes(files)
    begin, end = directory_of(raw)
    entries = bytearray(raw[begin:end])
    at = 0
    while at < len(entries):
        (place,) = struct.unpack_from("<L", entries, at + 42)
        struct.pack_into("<L", entries, at + 42, place + 4)
        lengths = struct.unpack_from("<3H", entries, at + 28)
        at += 46 + sum(lengths)
    return ended(b"PK\0\0" + raw[:begin], bytes(entries), len(files))


def fewer_entries(files: Files) -> bytes:
    """Return a zip whose end says one member less than its directory lists."""
    raw = bytearray(zip_bytes(files))
    struct.pack_into("<2H", raw, len(raw) - 14, len(files) - 1, len(files) - 1)
    return bytes(raw)


def unsaid_encoding(files: Files) -> bytes:
    """Return a zip with a name that is no ASCII and does not say that it is UTF-8."""
    raw = bytearray(zip_of([*with_manifest({**files, "\xe9.txt": b""}).items()]))
    for signature, name, flags in ((b"PK\x03\x04", 30, 6), (b"PK\x01\x02", 46, 8)):
        at = (
            raw.find(b"\xc3\xa9.txt", raw.find(signature)) if flags == 6 else raw.rfind(b"\xc3\xa9")
        )
        raw[at - name + flags + 1] &= ~8 & 255
    return bytes(raw)


def half(files: Files) -> bytes:
    """Return the first half of a zip."""
    raw = zip_bytes(files)
    return raw[: len(raw) // 2]


PATH_EXTRA = struct.pack("<2HBL", 0x7075, 8, 1, 0) + b"evi"
ZIP64_EXTRA = struct.pack("<2H2Q", 1, 16, 1, 1)

packed("overlapping members", "overlaps others", overlapping)
packed("member listed twice", "one file on some systems", doubled_entry)
packed("data behind a compressed stream", "another size", hidden_in_stream)
packed("second end of ZIP64", "not where it says", zip64_end)
packed("sizes of ZIP64 in an extra field", "another size or name", with_info(extra=ZIP64_EXTRA))
packed("another name in an extra field", "", with_info(extra=PATH_EXTRA))
packed("extra field that is cut off", "not a sound zip", with_info(extra=b"\x99\x99\xff\xff"))
packed("encrypted member", "is encrypted", flagged(0x0001))
packed("strongly encrypted member", "is encrypted", flagged(0x0041))
packed("sizes behind the data", "pack without streaming", flagged(0x0008))
packed("patched data", "not a sound zip|has flags", flagged(0x0020))
packed("unknown flag", "has flags", flagged(0x4000))
packed(
    "comment of the zip",
    "a comment, more, or less",
    lambda files: zip_bytes(files)[:-2] + b"\x04\0evil",
)
packed(
    "second zip in the comment",
    "not where it says",
    lambda files: zip_bytes(files)[:-2] + b"\x16\0" + zip_bytes({})[-22:],
)
packed("comment of a member", "comment, which no digest covers", with_info(comment=b"\x1b[2J"))
packed("program before the zip", "begin like one", lambda files: b"#!/bin/sh\n" + zip_bytes(files))
packed("text after the zip", "a comment, more, or less", lambda files: zip_bytes(files) + b"hidden")
packed("data between members and directory", "between the last member", gap)
packed("data before the first member", "overlaps others, or follows", shifted)
packed("two names of one member", "do not agree", patched(b"PK\x03\x04", 30, "<B", ord("N")))
packed("two sizes of one member", "do not agree", patched(b"PK\x03\x04", 22, "<L", 1))
packed("two checksums of one member", "do not agree", patched(b"PK\x03\x04", 14, "<L", 1))
packed("wrong place of a member", "overlaps others", patched(b"PK\x01\x02", 42, "<L", 7))
packed("size beyond the end", "", patched(b"PK\x01\x02", 20, "<L", 2**31))
packed(
    "unusual compression", "by method 14", lambda files: zip_of([*files.items()], zipfile.ZIP_LZMA)
)
packed("more members than said", "members declared", fewer_entries)
packed(
    "65,535 members declared", "more than 2000 files", patched(b"PK\x05\x06", 8, "<L", 2**32 - 1)
)
packed("one part of several", "of several parts", patched(b"PK\x05\x06", 4, "<H", 1))
packed("directory elsewhere", "not where it says", patched(b"PK\x05\x06", 16, "<L", 0))
packed("name with a zero byte", "reads as", cut_name)
packed("name in an unsaid encoding", "in which encoding", unsaid_encoding)
packed(
    "folder with content",
    "folder with content",
    lambda files: zip_of([*files.items(), (special("d/", stat.S_IFDIR | 0o755), b"x")]),
)
packed(
    "folder that is a link",
    "is a link or device",
    lambda files: zip_of([*files.items(), (special("d/", stat.S_IFLNK | 0o755), b"")]),
)
packed(
    "folder of a file's name",
    "used as a folder",
    lambda files: zip_of([*files.items(), (special("RECORD.JSON/", stat.S_IFDIR | 0o755), b"")]),
)
packed("half a zip", "not a sound zip", half)
packed("empty file", "not a sound zip", lambda files: b"")
packed("no zip at all", "not a sound zip", lambda files: b"\x1f\x8b" + bytes(100))
packed(
    "2,001 files",
    "more than 2000 files",
    lambda files: zip_bytes({f"f{n}": b"" for n in range(2001)}),
)
packed(
    "bundle in a bundle",
    "not a file of a run",
    lambda files: zip_bytes(with_manifest({**files, "inner.zip": zip_bytes(files)})),
)

for attack, part, reason in (
    ("name with an escape sequence", "a\x1b[2J", "control, bidi"),
    ("name with an invisible joiner", "a\u200db", "control, bidi"),
    ("name with a blank letter", "a\u3164b", "shows nothing"),
    ("name with a variation selector", "a\ufe0fb", "shows nothing"),
    ("name with another space", "a\xa0b", "shows nothing"),
    ("name that covers its neighbours", "a" + "\u0336" * 40, "marks on one letter"),
    ("name that ends in a dot", "record.json.", "space or dot"),
    ("name of 300 letters", "a" * 300, "more than 240"),
    ("name of a drive", "C:/x", "holds one of"),
    ("name with an empty part", "a//b", "not a name of its own"),
):
    packed(attack, reason, with_member(part))
packed("manifest under another case", "one file on some", with_member("manifest.JSON"))
packed("folders that differ in case", "one on some systems", with_member("Evidence/x.json"))
