"""The manifest that names every file of a bundle by digest, and the zip that carries them."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

from llmb.records.bundle import MANIFEST, SIGNATURES, Manifest, ManifestFile
from llmb.records.canonical import as_json, canonical_bytes
from llmb.records.submission import Submission

#: The first moment a zip can express.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_REGULAR_FILE = 0o100644
_UNIX = 3


def manifest_bytes(files: Mapping[str, bytes], submission: Submission) -> bytes:
    """Return MANIFEST.json of ``files``: canonical JSON (RFC 8785).

    For each file its sha256 and size in bytes, and whose the bundle is.
    """
    listed = {
        name: ManifestFile(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        for name, content in files.items()
        if name != MANIFEST and not name.startswith(SIGNATURES)
    }
    return canonical_bytes(as_json(Manifest(submission=submission, files=listed)))


def with_manifest(files: Mapping[str, bytes], submission: Submission) -> dict[str, bytes]:
    """Return ``files`` and their manifest: the files of a bundle."""
    return {**files, MANIFEST: manifest_bytes(files, submission)}


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """Return ``files`` as a zip that is the same, byte for byte, wherever it is made.

    Members are stored, not compressed: what zlib writes differs from build to build.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, date_time=_EPOCH)
            member.create_system = _UNIX
            member.external_attr = _REGULAR_FILE << 16
            archive.writestr(member, files[name])
    return buffer.getvalue()
