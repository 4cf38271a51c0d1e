"""The reader of zips by itself: whatever two readers could read differently is refused."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable

import pytest

from llmb.errors import BundleRefusedError, UsageError
from llmb.records import members
from llmb.records.zip_members import read_bytes, read_zip
from llmb.submission.manifest import zip_bytes
from tests.attacks import zips
from tests.attacks.kinds import special, zip_of

Files = dict[str, bytes]
Build = Callable[[Files], bytes]
FILES: Files = {"sources.diff": b"text " * 100, "record.json": b'{"a":1}', "\xe9.txt": b"x"}
#: Where the two headers of a member hold its flags, method, checksum, packed size and size.
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
FLAGS, METHOD, CRC, PACKED, SIZE = (6, 8), (8, 10), (14, 16), (18, 20), (22, 24)


def both(at: tuple[int, int], form: str, value: int) -> Build:
    """Return what overwrites one number of the last member in both of its headers."""

    def change(files: Files) -> bytes:
        raw = bytearray(zip_bytes(files))
        for signature, offset in zip((LOCAL, CENTRAL), at, strict=True):
            struct.pack_into(form, raw, raw.rfind(signature) + offset, value)
        return bytes(raw)

    return change


def with_folder(name: str, mode: int, content: bytes = b"") -> Build:
    return lambda files: zip_of([*files.items(), (special(name, mode), content)])


def extra_in(place: str, extra: bytes) -> Build:
    """Return what puts ``extra`` into one of a member's two headers."""

    def change(files: Files) -> bytes:
        raw = zip_bytes({"a": b"x"})
        begin, end = zips.directory_of(raw)
        local, central, length = raw[:begin], raw[begin:end], struct.pack("<H", len(extra))
        if place == "member":
            local = local[:28] + length + local[30:31] + extra + local[31:]
        else:
            central = central[:30] + length + central[32:] + extra
        return zips.ended(local, central, 1)

    return change


def second_end(signature: bytes) -> Build:
    """Return what adds an end under another signature that fits all the same."""

    def change(files: Files) -> bytes:
        raw = zip_bytes(files)
        return raw + struct.pack("<4s4H2LH", signature, 0, 0, 3, 3, 0, len(raw), 0)

    return change


ATTACKS: dict[str, tuple[str, Build]] = {
    # the end
    "empty": ("begin like one, or is cut off", lambda files: b""),
    "no zip": ("begin like one", lambda files: b"\x1f\x8b" + bytes(100)),
    "cut off": ("does not end with its directory", zips.half),
    "program before it": ("begin like one", lambda files: b"#!/bin/sh\n" + zip_bytes(files)),
    "text after it": ("a comment, more, or less", lambda files: zip_bytes(files) + b"hidden"),
    "comment": ("a comment, more, or less", lambda f: zip_bytes(f)[:-2] + b"\x04\0evil"),
    "comment that is announced only": ("a comment, more", zips.patched(END, 20, "<H", 4)),
    "second zip in the comment": (
        "not where it says",
        lambda files: zip_bytes(files)[:-2] + b"\x16\0" + zip_bytes({})[-22:],
    ),
    "end that is none": ("a comment, more, or less", second_end(b"PK\x05\x07")),
    "end of ZIP64": ("not where it says", zips.zip64_end),
    "first part of several": ("one of several parts", zips.patched(END, 4, "<H", 1)),
    "directory in another part": ("one of several parts", zips.patched(END, 6, "<H", 1)),
    "more members in other parts": ("one of several parts", zips.patched(END, 8, "<H", 2)),
    "65,535 members": ("more than 2000 files", zips.patched(END, 8, "<L", 2**32 - 1)),
    "huge directory": ("directory has 2097153 bytes", zips.patched(END, 12, "<L", 2**21 + 1)),
    "directory elsewhere": ("not where it says", zips.patched(END, 16, "<L", 0)),
    "more members than said": ("2 members declared, 3 there", zips.fewer_entries),
    # names
    "listed twice": ("one file on some systems", zips.doubled_entry),
    "name with a zero byte": ("reads as", zips.cut_name),
    "name in an unsaid encoding": ("in which encoding", zips.unsaid_encoding),
    "file as folder": ("used as a folder", with_folder("SOURCES.DIFF/", stat.S_IFDIR | 0o755)),
    # places
    "overlap": ("overlaps others, or follows a gap", zips.overlapping),
    "something before the first": ("overlaps others, or follows a gap", zips.shifted),
    "wrong place": ("overlaps others, or follows a gap", zips.patched(CENTRAL, 42, "<L", 7)),
    "something before the directory": ("between the last member and the directory", zips.gap),
    "data into the directory": ("reaches into the directory", both(PACKED, "<L", 9)),
    # kinds
    "link": ("link or device", zips.with_info(external_attr=(stat.S_IFLNK | 0o777) << 16)),
    "folder that is a link": ("link or device", with_folder("d/", stat.S_IFLNK | 0o755)),
    "folder with content": ("folder with content", with_folder("d/", stat.S_IFDIR, b"x")),
    "encrypted": ("is encrypted", zips.flagged(0x0001)),
    "strongly encrypted": ("is encrypted", zips.flagged(0x0040)),
    "hidden directory": ("is encrypted", zips.flagged(0x2000)),
    "sizes behind the data": ("pack without streaming", zips.flagged(0x0008)),
    "unknown flag": ("has flags 0x4000", zips.flagged(0x4000)),
    "other method": ("by method 14", lambda f: zip_of([*f.items()], zipfile.ZIP_LZMA)),
    "comment of a member": ("comment, which no digest covers", zips.with_info(comment=b"!")),
    **{
        f"{what} in an extra field of the {place}": (reason, extra_in(place, extra))
        for place in ("member", "directory")
        for what, reason, extra in (
            ("sizes of ZIP64", "another size or name", zips.ZIP64_EXTRA),
            ("name", "another size or name", zips.PATH_EXTRA),
            ("comment", "another size or name", struct.pack("<2HBL", 0x6375, 5, 1, 0)),
            ("end", "is cut off|not a sound zip", b"\x99\x99\xff\xff"),
        )
    },
    # two headers
    "two signatures": ("do not agree|not a sound zip", zips.patched(LOCAL, 3, "<B", 5)),
    "two flags": ("do not agree", zips.patched(LOCAL, FLAGS[0], "<H", 2)),
    "two methods": ("do not agree", zips.patched(LOCAL, METHOD[0], "<H", 8)),
    "two checksums": ("do not agree", zips.patched(LOCAL, CRC[0], "<L", 1)),
    "two packed sizes": ("do not agree", zips.patched(LOCAL, PACKED[0], "<L", 1)),
    "two sizes": ("do not agree", zips.patched(LOCAL, SIZE[0], "<L", 1)),
    "two names": ("do not agree", zips.patched(LOCAL, 30, "<B", ord("N"))),
    # content
    "larger than any file": ("67108865 bytes, more than 67108864", both(SIZE, "<L", 2**26 + 1)),
    "other checksum": ("another checksum than it declares", both(CRC, "<L", 1)),
    "stored data of another size": ("another size", both(SIZE, "<L", 2)),
    "data behind a stream": ("another size than it declares", zips.hidden_in_stream),
    "no stream": ("not a sound zip", lambda files: both(METHOD, "<H", 8)({"a": b"\xff" * 3})),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_zip_that_two_readers_may_take_for_different_files_is_refused(attack: str) -> None:
    reason, build = ATTACKS[attack]
    with pytest.raises(BundleRefusedError, match=reason) as refusal:
        read_bytes(build(dict(FILES)), "theirs.zip")
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("packed", [-1, 1])
def test_a_compressed_member_that_is_longer_or_shorter_than_its_data_is_refused(
    packed: int,
) -> None:
    content = os.urandom(50)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(content) + packer.flush()
    stream = stream[:-1] if packed < 0 else stream + b"\0"
    fields = (0, 8, 0, 33, zlib.crc32(content), len(stream), len(content), 1, 0)
    local = struct.pack("<4s5H3L2H", LOCAL, 20, *fields) + b"a" + stream
    central = struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, *fields, 0, 0, 0, 0, 0) + b"a"
    with pytest.raises(BundleRefusedError, match="another size than it declares"):
        read_bytes(zips.ended(local, central, 1), "theirs.zip")


@pytest.mark.parametrize(
    ("size", "reason"), [(2000, "another size than the 2000 bytes"), (2001, "200 times its size")]
)
def test_a_member_that_unpacks_to_more_than_two_hundred_times_its_size_is_not_unpacked(
    size: int, reason: str
) -> None:
    with pytest.raises(BundleRefusedError, match=reason):
        read_bytes(both(SIZE, "<L", size)({"a": bytes(10)}), "theirs.zip")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_honest_zip_gives_its_files_and_no_folders(method: int) -> None:
    folder = (special("evidence/", stat.S_IFDIR | 0o755), b"")
    raw = zip_of([folder, *FILES.items(), ("evidence/a.json", b"{}")], method)
    assert read_bytes(raw, "ours.zip") == {**FILES, "evidence/a.json": b"{}"}


def test_a_zip_without_members_is_one() -> None:
    assert read_bytes(zip_bytes({}), "ours.zip") == {}


def test_a_zip_on_disk_is_the_one_that_is_read(tmp_path) -> None:
    path = tmp_path / "ours.zip"
    path.write_bytes(zip_bytes(FILES))
    assert read_zip(path) == FILES
    with pytest.raises(UsageError):
        read_zip(tmp_path / "missing.zip")


def test_a_file_larger_than_any_bundle_is_refused_before_it_is_read(tmp_path) -> None:
    path = tmp_path / "huge.zip"
    path.touch()
    os.truncate(path, members.MAX_TOTAL_BYTES + 4 * 2**20 + 1)  # holes: it takes no disk
    with pytest.raises(BundleRefusedError, match="more than 272629760"):
        read_zip(path)
