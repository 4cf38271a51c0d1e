"""The manifest with the digest of every file of a bundle, and the zip of the files."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

from llmb.records.bundle import MANIFEST, SIGNATURES, Manifest, ManifestFile
from llmb.records.canonical import as_json, canonical_bytes
from llmb.records.submission import Submission

#: The earliest time a zip can express.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644
_UNIX = 3


def manifest_bytes(files: Mapping[str, bytes], submission: Submission) -> bytes:
    """Return MANIFEST.json of ``files``: canonical JSON (RFC 8785).

    The manifest has sha256 and size in bytes of each file, and the bundle's submission.
    """
    listed = {
        name: ManifestFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        for name, content in files.items()
        if name != MANIFEST and not name.startswith(SIGNATURES)
    }
    return canonical_bytes(as_json(Manifest(submission=submission, files=listed)))


def with_manifest(files: Mapping[str, bytes], submission: Submission) -> dict[str, bytes]:
    """Return ``files`` with the manifest: the files of a bundle."""
    return {**files, MANIFEST: manifest_bytes(files, submission)}


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return ``files`` as a zip with the same bytes on every machine.

    Members are stored, not compressed: zlib's output differs between builds.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, date_time=_EPOCH)
            member.create_system = _UNIX
            member.external_attr = _REGULAR_FILE << 16
            archive.writestr(member, files[name])
    return buffer.getvalue()
