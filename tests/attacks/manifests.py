"""Manifests, and what lies beside them unlisted: signatures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import rfc8785

from tests import builders
from tests.attacks.kinds import (
    ATTACKS,
    MANIFEST,
    Attack,
    Files,
    link_of,
    listing,
    unpacked,
)
from tests.builders import with_manifest

ENTRY = {"sha256": "0" * 64, "bytes": 0}
listing(
    "manifest that lists itself", "cannot vouch for", lambda d: d["files"].update({MANIFEST: ENTRY})
)
listing(
    "manifest that lists a signature",
    "cannot vouch for",
    lambda data: data["files"].update({"SIGNATURES/a.sig": ENTRY}),
)
listing("manifest of the future", "update llmb", lambda data: data.update(schema="llmb.bundle/3"))
listing("manifest with more to say", "is not of schema", lambda data: data.update(more=1))
listing("manifest of a list", "no table of files", lambda data: b"[]")
listing("manifest that climbs out", "missing from", lambda d: d["files"].update({"../x": ENTRY}))
listing("size that is true", "not the file", lambda d: d["files"]["model.diff"].update(bytes=False))
listing(
    "size as text", "not the file", lambda data: data["files"]["sources.diff"].update(bytes="9")
)
listing("size below nothing", "not the file", lambda d: d["files"]["sources.diff"].update(bytes=-1))
listing(
    "digest in capitals",
    "not the file",
    lambda data: data["files"]["sources.diff"].update(
        sha256=data["files"]["sources.diff"]["sha256"].upper()
    ),
)
listing(
    "size of 20 digits",
    "no canonical form",
    lambda d: b'{"files":{"a":99999999999999999999},"schema":"llmb.bundle/1"}',
)
listing("manifest of 9 MB", "bytes of JSON", lambda data: b" " * 9_000_000)
listing("byte-order mark", "not strict JSON", lambda data: b"\xef\xbb\xbf" + rfc8785.dumps(data))


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
