"""Hostile bundles: what a stranger could hand in, each as a path that ``llmb verify`` must refuse.

The first 26 are the project's own table of attacks; the others are of this file. Every one starts
from an honest bundle, so that it is refused for the attack and for nothing else.
"""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785

from llmb.submission import page
from llmb.submission.manifest import manifest_bytes, with_manifest, zip_bytes
from tests import builders

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


# -- how an attack is written down ------------------------------------------------------------


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
        data = json.loads(manifest_bytes(files))
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


# -- the table of the project -----------------------------------------------------------------

packed("climbs out of the folder", "not a name of its own", with_member("../evil"))
packed("absolute path", "is absolute", with_member("/etc/x"))
packed("backslashes", "holds one of", with_member("a\\..\\b"))
packed(
    "link in a zip",
    "is a link or device",
    lambda files: zip_of([*files.items(), (special("link", stat.S_IFLNK | 0o777), b"/etc/passwd")]),
)
packed(
    "device in a zip",
    "is a link or device",
    lambda files: zip_of([*files.items(), (special("dev", stat.S_IFCHR | 0o666), b"")]),
)
packed("names that differ in case", "one file on some systems", with_member("RECORD.json"))
packed("names of compatible letters", "one file on some", with_member("\uff52ecord.json"))
packed("name not in normal form", "normal form C", with_member("e\u0301.txt"))
packed(
    "same name twice",
    "one file on some systems",
    lambda files: zip_of([*files.items(), (RECORD, b'{"a":2}')]),
)
packed("name that turns the line around", "control, bidi", with_member("a\u202egnp.py"))
packed("name reserved on Windows", "reserved on Windows", with_member("aux.txt"))
packed("alternate data stream", "holds one of", with_member("a.txt:evil"))
packed("file used as a folder", "used as a folder", with_member("record.json/x"))
packed(
    "100 MB of zeros",
    "bytes, more than",
    lambda files: zip_of([*files.items(), ("z.bin", bytes(100_000_000))], zipfile.ZIP_DEFLATED),
)
packed(
    "30 MB out of 30 kB",
    "more than 200 times",
    lambda files: zip_of([*files.items(), ("z.bin", bytes(30_000_000))], zipfile.ZIP_DEFLATED),
)
packed("unlisted file", "not in the manifest", lambda files: zip_bytes({**files, "x.txt": b""}))
packed(
    "listed file left out",
    "missing from the bundle",
    lambda files: zip_bytes({name: raw for name, raw in files.items() if name != "log.txt"}),
)
packed(
    "one bit flipped",
    "not the file the manifest lists",
    lambda files: zip_bytes({**files, "log.txt": bytes([files["log.txt"][0] ^ 1, 10])}),
)
recorded(
    "key twice", "'llmb_version' twice", b'"llmb_version"', b'"llmb_version": "9",\n"llmb_version"'
)
recorded("NaN", "NaN is not a number", b'"loss_first": 10.9375', b'"loss_first": NaN')
recorded("infinity", "-Infinity is not a", b'"loss_first": 10.9375', b'"loss_first": -Infinity')
recorded("1e999", "too large", b'"loss_first": 10.9375', b'"loss_first": 1e999')
forged("deep nest", "nested deeper", lambda files: {RECORD: b"[" * 100_000 + b"]" * 100_000})
recorded("integer of 5,000 digits", "20 digits", b'"seed": 7', b'"seed": ' + b"7" * 5000)
recorded("latin-1", "not UTF-8", b'"Fast [1]"', b'"F\xe9st"')
listing("manifest with spaces", "not canonical", lambda data: json.dumps(data, indent=1).encode())

# -- zips that two readers would read differently ----------------------------------------------


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
        info = zipfile.ZipInfo("log.txt")
        for field, value in fields.items():
            setattr(info, field, value)
        rest = [(name, raw) for name, raw in files.items() if name != "log.txt"]
        return zip_of([*rest, (info, files["log.txt"])])

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
    name, crc = b"log.txt", zlib.crc32(content)
    fields = (0, 8, 0, 33, crc, len(data), len(content), len(name), 0)
    raw = zip_bytes({key: value for key, value in files.items() if key != "log.txt"})
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
    lambda files: zip_of([*files.items(), (special("LOG.TXT/", stat.S_IFDIR | 0o755), b"")]),
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

# -- names ------------------------------------------------------------------------------------

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

# -- folders ----------------------------------------------------------------------------------


def link_of(name: str, target: str) -> Callable[[Path], None]:
    """Return what replaces member ``name`` by a link."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)

    return change


def outside(folder: Path) -> None:
    """Replace a file by a link to the very same content."""
    (folder / "log.txt").rename(folder.parent / "log.txt")
    (folder / "log.txt").symlink_to(folder.parent / "log.txt")


def listen(folder: Path) -> None:
    """Put a socket into a folder."""
    here = Path.cwd()
    os.chdir(folder)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("door")
    finally:
        os.chdir(here)


def sparse(folder: Path) -> None:
    """Make a member a terabyte long, at no cost."""
    os.truncate(folder / "log.txt", 2**40)


def crowd(folder: Path) -> None:
    """Fill a folder with more entries than anybody looks at."""
    for number in range(20_001):
        (folder / f"d{number}").mkdir()


def unspeakable(folder: Path) -> None:
    """Make a file whose name is no text."""
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.txt")).touch()


unpacked("link to the right content", "is a link", outside)
unpacked("link to a secret", "is a link", link_of("log.txt", "/etc/passwd"))
unpacked("link to the folder itself", "is a link", link_of("loop", "."))
unpacked("link that leads nowhere", "is a link", link_of("log.txt", "nowhere"))
unpacked("link to an endless device", "is a link", link_of("log.txt", "/dev/zero"))
unpacked("link for the manifest", "is a link", link_of(MANIFEST, "/proc/self/environ"))
unpacked("fifo nobody writes to", "fifo or socket", lambda folder: os.mkfifo(folder / "pipe"))
unpacked("socket", "fifo or socket", listen)
unpacked("file of a terabyte", "bytes, more than", sparse)
unpacked(
    "folders without end", "nested deeper", lambda f: (f / "/".join("d" * 30)).mkdir(parents=True)
)
unpacked("20,001 entries", "more than 20000 entries", crowd)
unpacked("name that is no text", "control, bidi", unspeakable)
unpacked("no manifest yet", "this is not a bundle", lambda folder: (folder / MANIFEST).unlink())
unpacked("no record yet", "missing from the bundle", lambda folder: (folder / RECORD).unlink())
unpacked("half a manifest", "not strict JSON", lambda folder: os.truncate(folder / MANIFEST, 500))
unpacked("half a record", "not the file", lambda folder: os.truncate(folder / RECORD, 500))
unpacked("left-over of a writer", "not in the manifest", lambda f: (f / ".log.txt.new").touch())

# -- manifests --------------------------------------------------------------------------------

ENTRY = {"sha256": "0" * 64, "bytes": 0}
listing(
    "manifest that lists itself", "cannot vouch for", lambda d: d["files"].update({MANIFEST: ENTRY})
)
listing(
    "manifest that lists a signature",
    "cannot vouch for",
    lambda data: data["files"].update({"SIGNATURES/a.sig": ENTRY}),
)
listing("manifest of the future", "update llmb", lambda data: data.update(schema="llmb.bundle/2"))
listing("manifest with more to say", "is not of schema", lambda data: data.update(more=1))
listing("manifest of a list", "no table of files", lambda data: b"[]")
listing("manifest that climbs out", "missing from", lambda d: d["files"].update({"../x": ENTRY}))
listing("size that is true", "not the file", lambda d: d["files"]["model.diff"].update(bytes=False))
listing("size as text", "not the file", lambda data: data["files"]["log.txt"].update(bytes="9"))
listing("size below nothing", "not the file", lambda d: d["files"]["log.txt"].update(bytes=-1))
listing(
    "digest in capitals",
    "not the file",
    lambda data: data["files"]["log.txt"].update(sha256=data["files"]["log.txt"]["sha256"].upper()),
)
listing(
    "size of 20 digits",
    "no canonical form",
    lambda d: b'{"files":{"a":99999999999999999999},"schema":"llmb.bundle/1"}',
)
listing("manifest of 9 MB", "bytes of JSON", lambda data: b" " * 9_000_000)
listing("byte-order mark", "not strict JSON", lambda data: b"\xef\xbb\xbf" + rfc8785.dumps(data))

# -- signatures -------------------------------------------------------------------------------


def signed(name: str, reason: str, files: Mapping[str, bytes]) -> None:
    """Add an attack on the folder of signatures."""

    def make(folder: Path, honest: Files) -> Path:
        return builders.write(folder / "bundle", {**with_manifest(honest), **files})

    ATTACKS[name] = Attack(make, reason)


ARMOUR = b"-----BEGIN SSH SIGNATURE-----\nU1NIU0lHAAAAAQ==\n-----END SSH SIGNATURE-----\n"
signed("signature that is text", "not in the form", {"SIGNATURES/a.sig": b"signed, Acme\n"})
signed("signature that is empty", "not in the form", {"SIGNATURES/a.sig": b""})
signed("signature of nothing", "does not sign this", {"SIGNATURES/a.sig": ARMOUR})
signed("text around a signature", "not in the form", {"SIGNATURES/a.sig": b"as agreed\n" + ARMOUR})
signed("two signatures in one", "not in the form", {"SIGNATURES/a.sig": ARMOUR * 2})
signed("program among the signatures", "is no signature", {"SIGNATURES/run.sh": b"#!/bin/sh\n"})
signed("folder among the signatures", "is no signature", {"SIGNATURES/a/b.sig": ARMOUR})
signed("signature like an option", "is no signature", {"SIGNATURES/-f.sig": ARMOUR})
signed("signature of 17 kB", "no signature is that long", {"SIGNATURES/a.sig": bytes(17_000)})
signed("17 signatures", "more than 16", {f"SIGNATURES/{n}.sig": ARMOUR for n in range(17)})
signed("signatures under another case", "not in the manifest", {"signatures/a.sig": ARMOUR})
unpacked("link among the signatures", "is a link", link_of("SIGNATURES/a.sig", "/etc/passwd"))

# -- records ----------------------------------------------------------------------------------

SCHEMA = b'"schema": "llmb.run/1"'
recorded("record of the future", "made by a newer llmb", SCHEMA, b'"schema": "llmb.run/2"')
recorded("record of a far future", "made by a newer", SCHEMA, b'"schema": "llmb.run/999999999"')
recorded("record of before all", "which nobody reads", SCHEMA, b'"schema": "llmb.run/0"')
recorded("schema with a zero in front", "not a run record", SCHEMA, b'"schema": "llmb.run/01"')
recorded("schema with a line break", "not a run record", SCHEMA, b'"schema": "llmb.run/1\\n"')
recorded(
    "schema in other digits", "not a run record", SCHEMA, '"schema": "llmb.run/\u0661"'.encode()
)
recorded("schema that is a list", "not a run record", SCHEMA, b'"schema": ["llmb.run/1"]')
recorded("field with an escape", "Extra inputs", b'"waivers"', b'"\\u001b[2J": 1,\n"waivers"')
recorded("half of a letter", "surrogate", b'"Fast [1]"', b'"\\ud800"')
recorded("number as text", "not in the form", b'"batch_size": 8', b'"batch_size": "8"')
recorded("number as truth", "not in the form", b'"repeats": 1,', b'"repeats": true,')
recorded("verdict nobody gives", "Input should be", b'"verdict": "', b'"verdict": "CERTIFIED ')
forged("record that is a list", "not a run record", lambda files: {RECORD: b"[]"})
forged("record of 250,001 values", "values", lambda files: {RECORD: b"[" + b"0," * 250_001 + b"0]"})
edited(
    "wrong text in 100,000 places",
    r"step_ns\.0",
    lambda data: data["timing"].update(step_ns=["x"] * 100_000),
)
edited("no repeats", "refused", lambda data: data["timing"].update(repeats=[]))
edited(
    "throughput of 1e308", "recomputed", lambda data: data["result"].update(tokens_per_second=1e308)
)
edited("window of 19 digits", "refused", lambda data: data["timing"].update(stop_ns=10**19 - 1))
edited("10^18 devices", "refused", lambda data: data["topology"].update(world_size=10**18))
edited(
    "10^19 layers",
    "refused",
    lambda data: data["config"]["shape_overrides"].update(num_hidden_layers=10**19),
)
edited(
    "product in no time",
    "refused",
    lambda data: data["ceilings"]["before"]["gemms"][0].update(best_s=5e-324),
)
edited("negative energy", "refused", lambda data: data["timing"].update(energy_start_j=-1e308))
edited(
    "plugin file that climbs out",
    "is not the one in the record",
    lambda data: data["plugin"]["files"][0].update(path="../../../etc/passwd"),
)
edited(
    "device that writes to the terminal",
    "README.md does not say",
    lambda data: data["system"]["devices"][0].update(
        description="\x1b]0;owned\x07<script>alert(1)</script>"
    ),
)

# -- evidence and the page ----------------------------------------------------------------------


def evidence(name: str, reason: str, file: str, content: bytes) -> None:
    """Add an attack on a file of evidence."""
    forged(name, reason, lambda files: {f"evidence/repeat-0/{file}": content})


def tensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file of ``header``, whatever it says."""
    size = len(header) if length is None else length
    return struct.pack("<Q", size) + header + data


EVERY = ("gradients", "honest", "reference", "steps", "replay")


def arrays(name: str, content: bytes) -> None:
    """Add an attack on every file of numbers, with the files beside them that make them be read."""
    probed = {
        "seed": 1,
        "last_step": 51,
        "token_seed": 1,
        "passes": ["live", "branches"],
        "missing": [],
        "failure": None,
    }
    steps: dict[str, Any] = {"steps": [], "pause_ns": 0, "longest_pause_ns": 0}

    def change(files: Files) -> Files:
        where = "evidence/repeat-0/"
        found = {f"{where}{file}.safetensors": content for file in EVERY}
        found |= {f"{where}probed.json": json.dumps(probed).encode()}
        return found | {f"{where}steps.json": json.dumps(steps).encode()}

    forged(name, "audit: ", change)


def header_of(begin: int, end: int, shape: list[int], dtype: str = "F32") -> bytes:
    """Return the header of a file with one array."""
    return json.dumps(
        {"a": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}
    ).encode()


arrays("numbers that are none", b"numbers")
arrays("header of 2^63 bytes", tensors(b"{}", length=2**63))
arrays("header of 2^64 - 1 bytes", tensors(b"{}", length=2**64 - 1))
arrays("array beyond the file", tensors(header_of(0, 2**40, [2**38])))
arrays("array that ends before it begins", tensors(header_of(8, 0, [2]), bytes(8)))
arrays("array of 2^126 elements", tensors(header_of(0, 4, [2**63, 2**63]), bytes(4)))
arrays("array of negative size", tensors(header_of(0, 4, [-1]), bytes(4)))
arrays("array of an unknown type", tensors(header_of(0, 4, [1], "F99"), bytes(4)))
arrays("no array where some must be", tensors(b"{}"))
arrays("deep header", tensors(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"))
evidence(
    "evidence with a key twice",
    "'before' twice",
    "model.json",
    b'{"before":{},"before":{},"after":{}}',
)
evidence("evidence of NaN", "NaN is not", "litmus.json", b'{"ones":NaN}')
evidence("evidence that is deep", "nested deeper", "optimizer.json", b"[" * 10_000)
evidence(
    "evidence that can be run", "not a file of a run", "weights.pkl", b"cos\nsystem\n(S'id'\ntR."
)
forged(
    "evidence of a repeat there was not",
    "not a file of a run",
    lambda files: {"evidence/repeat-7/model.json": b"{}"},
)
forged("page with a script", "README.md is not of a version", lambda f: {"README.md": b"<script>"})
forged(
    "page with another figure",
    "README.md does not say",
    lambda files: {"README.md": files["README.md"].replace(b"tokens/s", b"megatokens/s", 1)},
)
forged("page of the future", "update llmb", lambda f: {"README.md": b"<!-- llmb.page/2 -->\n"})

# -- much work for few bytes ---------------------------------------------------------------------


def arrays_of(**values: int) -> bytes:
    """Return a safetensors file of arrays of so many zeros each."""
    header, place = {}, 0
    for name, count in values.items():
        offsets = [place, place + 4 * count]
        header[name] = {"dtype": "F32", "shape": [count], "data_offsets": offsets}
        place += 4 * count
    return tensors(json.dumps(header).encode(), bytes(place))


def audited(name: str, reason: str, indices: list[int], segments: list[dict[str, Any]]) -> None:
    """Add an attack on audited steps, with the arrays that make them be looked at."""
    kinds = [
        f"{when}/{kind}" for when in ("before", "after") for kind in ("value", "mean", "square")
    ]
    content = arrays_of(**{f"1/{part}": 3 for part in (*kinds, "replay/gradient", "gradient")})
    fixed = {"token_seed": 1, "seed": 1, "weights_kept": True, "steps_before": 1.0}
    fixed |= {"foreach": None, "fused": None, "capturable": False, "segments": segments}
    steps = {
        "steps": [{"index": i, **fixed} for i in indices],
        "pause_ns": 0,
        "longest_pause_ns": 0,
    }
    where = "evidence/repeat-0/"
    named = {f"{where}{file}.safetensors": content for file in ("steps", "replay", "honest")}
    forged(name, reason, lambda files: {**named, f"{where}steps.json": json.dumps(steps).encode()})


def modules(count: int) -> bytes:
    """Return a module tree in which every other module was replaced."""
    before = {f"layers.{n}": "torch.nn.Linear()" for n in range(count)}
    after = {name: "Other()" if n % 2 else one for n, (name, one) in enumerate(before.items())}
    return json.dumps({"before": before, "after": after}).encode()


def replaced(files: Files) -> Files:
    """Return a record of many declared patches, and evidence of as many replacements."""
    record = json.loads(files[RECORD])
    patch = {"target": "*a*a*a*a*a*a*b", "reason": "speed"}
    record["plugin"]["declared_patches"] = [patch] * 20_000
    one = {"name": "a" * 30, "kind": "python", "origin": "plugin"}
    seen = {"callables": 1, "operators": 1, "replaced": [one] * 20_000, "device_kernels": 0}
    return {
        RECORD: json.dumps(record).encode(),
        "evidence/repeat-0/namespace.json": json.dumps({**seen, "libraries": []}).encode(),
    }


def long_window(data: dict[str, Any]) -> None:
    """Claim a window of 10^18 steps."""
    for timing in (data["timing"], *data["timing"]["repeats"]):
        timing.update(timed_steps=10**18)


def long_batch(data: dict[str, Any]) -> None:
    """Claim sequences of their own lengths, 10^15 a step."""
    data["config"].update(dynamic=True, batch_size=10**15)
    data["workload"].update(tokens_per_step=256 * 10**15)
    for timing in (data["timing"], *data["timing"]["repeats"]):
        timing.update(step_tokens=[10] * 52)


def many_fences(data: dict[str, Any]) -> None:
    """Claim a fence and a look at every one of 20,000 steps."""
    steps = list(range(20_000))
    stamps = [step * 1000 for step in steps]
    more = {"fence_steps": steps, "fence_ns": stamps, "fence_worker_ns": stamps, "step_ns": stamps}
    more |= {"warmup_steps": 1, "timed_steps": 19_998, "audited_steps": steps}
    more |= {"start_ns": 1000, "stop_ns": 19_999_000}
    data["timing"]["repeats"][0].update(more)


SEGMENT = {"name": "a", "dtype": "float32", "gradients": 10**18, "states": 10**18}
audited("segment of 10^18 elements", "audit: ", [1], [SEGMENT])
audited("segment of fewer than no elements", "audit: ", [1], [{**SEGMENT, "gradients": -1}])
audited("one step audited 5,000 times", "audited twice", [1] * 5000, [])
edited("window of 10^18 steps", "recomputation: ", long_window)
edited("10^15 sequences of their own lengths", "recomputation: ", long_batch)
edited("20,000 fences and looks", "recomputation: ", many_fences)
evidence("60,000 modules", "no diff of them", "model.json", modules(60_000))
forged("20,000 replacements and patches", "audit: ", replaced)
arrays("array of 5 million numbers", arrays_of(a=5 * 2**20))
arrays("20,000 arrays", arrays_of(**{f"branches/{n}": 1 for n in range(20_000)}))

# -- what is named on the command line --------------------------------------------------------


def named(name: str, reason: str, make: Callable[[Path], Path], code: int) -> None:
    """Add something that is no bundle of any kind."""
    ATTACKS[name] = Attack(lambda folder, files: make(folder), reason, code)


def loop(folder: Path) -> Path:
    """Return a link to itself."""
    (folder / "loop").symlink_to("loop")
    return folder / "loop"


def pipe(folder: Path) -> Path:
    """Return a fifo."""
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


named("nothing there", "cannot read", lambda folder: folder / "nothing", 2)
named("path of 300 letters", "cannot read", lambda folder: folder / ("a" * 300), 2)
named("path of 5,000 letters", "cannot read", lambda folder: folder / ("a/" * 2500), 2)
named("link to itself", "cannot read", loop, 2)
named("file as a folder", "cannot read", lambda folder: Path("/etc/passwd/x"), 2)
named("endless device", "not a regular file", lambda folder: Path("/dev/zero"), 6)
named("folder that may not be listed", "cannot read", lambda folder: Path("/proc/1/fd/x"), 2)
named("fifo", "not a regular file", pipe, 6)
named("file of the kernel", "", lambda folder: Path("/proc/self/maps"), 6)


def empty(folder: Path) -> Path:
    """Return an empty folder."""
    (folder / "empty").mkdir()
    return folder / "empty"


named("empty folder", "this is not a bundle", empty, 6)
