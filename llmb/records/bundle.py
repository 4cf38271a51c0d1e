"""The safe reader of bundles and records, which checks files from strangers before any use.

The reader never runs, imports or extracts content of a bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from llmb.config import Frozen, JsonFile
from llmb.errors import BundleRefusedError, EvidenceNotHereError, UsageError
from llmb.records import member_names, members, migrations, strict_json, zip_members
from llmb.records.canonical import canonical_bytes
from llmb.records.run_record import SCHEMA, RunRecord
from llmb.records.submission import Submission

# Version history of the manifest, one line per change; every version is read for ever.
# llmb.bundle/1  2026-11  first version: ``files``, name -> sha256 and bytes.
# llmb.bundle/2  2026-11  ``submission`` added: the submitter and the system of the bundle.
BUNDLE_SCHEMA: Literal["llmb.bundle/2"] = "llmb.bundle/2"
_KEYS = {"llmb.bundle/1": {"schema", "files"}, BUNDLE_SCHEMA: {"schema", "submission", "files"}}
MANIFEST, SIGNATURES, RECORD = "MANIFEST.json", "SIGNATURES/", "record.json"
#: Files that no digest of the manifest covers must be small, and must be signatures.
MAX_SIGNATURES, MAX_SIGNATURE_BYTES = 16, 16 * 2**10
_SIGNATURE = re.compile(r"SIGNATURES/[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}\.sig")
#: Smallest file that may lie outside the bundle. Only arrays of evidence may lie outside.
MIN_ELSEWHERE_BYTES = 64 * 2**10
_ELSEWHERE = re.compile(r"evidence/repeat-(0|[1-9][0-9]{0,3})/[A-Za-z0-9_-]{1,99}\.safetensors")

_Model = TypeVar("_Model", bound=Frozen)


class ManifestFile(Frozen):
    """The manifest's entry of one file."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    bytes: int = Field(ge=0)


class Manifest(JsonFile):
    """``MANIFEST.json``: the submitter of a bundle, and every other file except signatures."""

    schema_: Literal["llmb.bundle/2"] = Field(alias="schema", default=BUNDLE_SCHEMA)
    submission: Submission
    #: Path within the bundle, with forward slashes -> digest and size.
    files: dict[str, ManifestFile]


#: Returns the bytes of a file outside the bundle, or raises EvidenceNotHereError.
Take = Callable[[ManifestFile], bytes]


@dataclass(frozen=True)
class Bundle:
    """The files of a bundle, name -> bytes, with the digests of the manifest."""

    files: Mapping[str, bytes]
    #: sha256 of MANIFEST.json, in hex.
    bundle_id: str
    #: Submitter and system, by the manifest; None in a bundle of schema ``llmb.bundle/1``.
    submission: Submission | None = None
    #: Evidence in the manifest but outside the bundle: only ``read_partly`` leaves any.
    elsewhere: Mapping[str, ManifestFile] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def manifest(self) -> bytes:
        """The bytes that the bundle id is the digest of, and that a signature signs."""
        return self.files[MANIFEST]

    @property
    def signatures(self) -> dict[str, bytes]:
        """The signature files, by name, not verified here."""
        return {name: self.files[name] for name in sorted(self.files) if _is_beside(name)}

    def record(self) -> RunRecord:
        """Return the run record of the bundle.

        Raises:
            BundleRefusedError: the record is missing, or this llmb cannot read the record.
        """
        return parse_record(self._content(RECORD), RECORD)

    def json(self, name: str) -> Any:
        """Return the JSON value of member ``name``.

        Raises:
            BundleRefusedError: no such member, or not strict JSON.
        """
        return strict_json.loads(self._content(name), name)

    def _content(self, name: str) -> bytes:
        if name not in self.files:
            raise BundleRefusedError(f"the bundle holds no {name}")
        return self.files[name]


def read_bundle(path: Path, take: Take | None = None) -> Bundle:
    """Return the bundle in the folder or zip ``path``, with checked file names and digests.

    Args:
        path: the bundle.
        take: returns evidence outside the bundle; None if no location was given.

    Raises:
        UsageError: nothing is readable at ``path``.
        BundleRefusedError: a file differs from the manifest; the one-line message names the file.
        EvidenceNotHereError: all present files are correct, and some evidence lies elsewhere.
    """
    return completed(read_partly(path), take)


def read_partly(path: Path) -> Bundle:
    """Return the present files of the bundle at ``path``; files in ``elsewhere`` stay unchecked.

    Enough for readers of the record alone. Every present file was checked against the manifest.

    Raises:
        UsageError, BundleRefusedError: as ``read_bundle``.
    """
    # Not Path.is_dir, which fails if a path is too long.
    folder = os.path.isdir(path)
    return _bundle(members.read_folder(path) if folder else zip_members.read_zip(path), partly=True)


def completed(bundle: Bundle, take: Take | None) -> Bundle:
    """Return ``bundle`` with the files from elsewhere: equal to a bundle with all files present.

    Raises:
        EvidenceNotHereError: no location was given, or the evidence is missing at the location.
    """
    if not bundle.elsewhere:
        return bundle
    if take is None:
        many, size = len(bundle.elsewhere), sum(one.bytes for one in bundle.elsewhere.values())
        raise EvidenceNotHereError(
            f"evidence not here: {many} file{'' if many == 1 else 's'} of {size / 1e6:,.1f} MB; "
            "give --evidence PATH_OR_URL"
        )
    taken = {name: take(one) for name, one in sorted(bundle.elsewhere.items())}
    return from_files({**bundle.files, **taken})


def from_files(files: Mapping[str, bytes]) -> Bundle:
    """Return the bundle of ``files`` (manifest included), or refuse the files.

    Raises:
        BundleRefusedError: no manifest or a wrong manifest, a missing or extra file, a wrong
            digest, a file among the signatures that is no signature.
    """
    return _bundle(files, partly=False)


def may_lie_elsewhere(name: str, size: int) -> bool:
    """Tell whether file ``name`` of ``size`` bytes may be left out of a bundle's folder."""
    return size >= MIN_ELSEWHERE_BYTES and _ELSEWHERE.fullmatch(name) is not None


def _bundle(files: Mapping[str, bytes], partly: bool) -> Bundle:
    if MANIFEST not in files:
        raise BundleRefusedError(f"there is no {MANIFEST}: this is not a bundle")
    listed, submission = _listed(files[MANIFEST])
    _check_signatures({name: len(files[name]) for name in files if _is_beside(name)})
    present = {name for name in files if name != MANIFEST and not _is_beside(name)}
    elsewhere = _elsewhere(listed, present, files) if partly else {}
    for name in sorted(listed.keys() - present - elsewhere.keys()):
        raise BundleRefusedError(f"{name!r} is in the manifest and missing from the bundle")
    for name in sorted(present - listed.keys()):
        raise BundleRefusedError(f"{name!r} is in the bundle and not in the manifest")
    for name, entry in listed.items():
        if name in elsewhere:
            continue
        digest = hashlib.sha256(files[name]).hexdigest()
        if not strict_json.same(entry, {"sha256": digest, "bytes": len(files[name])}):
            raise BundleRefusedError(
                f"{name!r} is not the file the manifest lists (digest or size)"
            )
    bundle_id = hashlib.sha256(files[MANIFEST]).hexdigest()
    return Bundle(MappingProxyType(dict(files)), bundle_id, submission, MappingProxyType(elsewhere))


def _elsewhere(
    listed: Mapping[str, Any], present: set[str], files: Mapping[str, bytes]
) -> dict[str, ManifestFile]:
    """Return listed files that are missing and may lie elsewhere, within the reading limits."""
    found: dict[str, ManifestFile] = {}
    for name in sorted(listed.keys() - present):
        if _ELSEWHERE.fullmatch(name) is None:
            continue
        entry = parse_model(ManifestFile, listed[name], f"{MANIFEST}: {name}")
        if may_lie_elsewhere(name, entry.bytes):
            found[name] = entry
    if found:
        basket = members.Basket()
        sizes = {name: len(content) for name, content in files.items()}
        for name, size in (*sizes.items(), *((name, one.bytes) for name, one in found.items())):
            basket.count(name, size)
        member_names.check((*files, *found))
    return found


def read_record(path: Path) -> RunRecord:
    """Return the record of a run directory, a bundle (folder or zip) or a record file.

    Raises:
        UsageError: nothing is readable at ``path``, or the run did not finish.
        BundleRefusedError: the record is damaged, forged or newer than this llmb.
    """
    if os.path.isdir(path):
        if os.path.lexists(path / MANIFEST):
            return read_partly(path).record()
        if not os.path.lexists(path / RECORD):
            raise UsageError(f"{str(path)!r} holds no {RECORD}: no run, or one that did not finish")
        path = path / RECORD
    raw = members.read_file(path, members.MAX_TOTAL_BYTES)
    return read_partly(path).record() if raw.startswith(b"PK") else parse_record(raw, str(path))


def parse_record(raw: bytes, name: str) -> RunRecord:
    """Return the record in ``raw``, which must be in exactly the form that llmb writes.

    Raises:
        BundleRefusedError: not strict JSON, an unreadable schema, a wrong field, or fields under
            names or forms that llmb does not write.
    """
    data = strict_json.loads(raw, name)
    current = migrations.to_current(data, SCHEMA, name, "a run record")
    return parse_model(RunRecord, current, name)


def parse_model(model: type[_Model], data: Any, name: str) -> _Model:
    """Return JSON ``data`` as a ``model`` that serialises to the same data again.

    Raises:
        BundleRefusedError: the data do not fit; the message names the first wrong field.
    """
    try:
        value = model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BundleRefusedError(
            f"{name!r}: {_field(first['loc'])}: {first['msg']}{more}"
        ) from None
    # Only fields in the data: a field added by a later version must not break old records.
    path = _difference(data, value.model_dump(mode="json", by_alias=True, exclude_unset=True), ())
    if path is not None:
        raise BundleRefusedError(f"{name!r}: {_field(path)} is not in the form llmb writes")
    return value


def _is_beside(name: str) -> bool:
    return name.startswith(SIGNATURES)


def _check_signatures(sizes: Mapping[str, int]) -> None:
    if len(sizes) > MAX_SIGNATURES:
        raise BundleRefusedError(f"{SIGNATURES} holds more than {MAX_SIGNATURES} files")
    for name, size in sorted(sizes.items()):
        if _SIGNATURE.fullmatch(name) is None:
            raise BundleRefusedError(f"{name!r} is no signature: those are {SIGNATURES}<name>.sig")
        if size > MAX_SIGNATURE_BYTES:
            raise BundleRefusedError(f"{name!r} has {size} bytes: no signature is that long")


def _listed(raw: bytes) -> tuple[dict[str, Any], Submission | None]:
    """Return the manifest's entries of the files, and the submission."""
    manifest = strict_json.loads(raw, MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise BundleRefusedError(f"{MANIFEST} has no table of files")
    if manifest.keys() != _KEYS.get(str(manifest.get("schema"))):
        raise BundleRefusedError(f"{MANIFEST} is not of schema {BUNDLE_SCHEMA}: update llmb?")
    try:
        canonical = canonical_bytes(manifest)
    except ValueError as error:
        raise BundleRefusedError(f"{MANIFEST} has no canonical form: {error}") from None
    if canonical != raw:
        raise BundleRefusedError(f"{MANIFEST} is not canonical JSON (RFC 8785)")
    files: dict[str, Any] = manifest["files"]
    for name in files:
        if name == MANIFEST or _is_beside(name):
            raise BundleRefusedError(f"{MANIFEST} lists {name!r}, which it cannot vouch for")
    if "submission" not in manifest:
        return files, None
    return files, parse_model(Submission, manifest["submission"], f"{MANIFEST}: submission")


def _field(path: tuple[int | str, ...]) -> str:
    # A stranger's key may hold any text: only plain keys are printed unquoted.
    parts = [part if re.fullmatch(r"\w+", str(part), re.ASCII) else repr(part) for part in path]
    return ".".join(map(str, parts)) or "the whole"


def _difference(a: Any, b: Any, path: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    """Return the path to the first difference of two JSON values, None when they are the same."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys: list[str] = sorted(a.keys() | b.keys())
        missing = [key for key in keys if key not in a or key not in b]
        if missing:
            return (*path, missing[0])
        found = (_difference(a[key], b[key], (*path, key)) for key in keys)
        return next((p for p in found if p is not None), None)
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        found = (_difference(x, y, (*path, i)) for i, (x, y) in enumerate(zip(a, b, strict=True)))
        return next((p for p in found if p is not None), None)
    return None if strict_json.same(a, b) else path
