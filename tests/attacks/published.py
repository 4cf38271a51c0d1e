"""The project's own table of attacks: 26 of them."""

from __future__ import annotations

import json
import stat
import zipfile

from llmb.submission.manifest import zip_bytes
from tests.attacks.kinds import (
    RECORD,
    forged,
    listing,
    packed,
    recorded,
    special,
    with_member,
    zip_of,
)

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
    lambda files: zip_bytes({name: raw for name, raw in files.items() if name != "sources.diff"}),
)
packed(
    "one bit flipped",
    "not the file the manifest lists",
    lambda files: zip_bytes({**files, "sources.diff": bytes([files["sources.diff"][0] ^ 1, 10])}),
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
