"""Results of verification, kept from one ``llmb report`` to the next in the user's cache folder.

A result's key is a digest of every input: the bundle id (and hence every byte read, because reading
compares the digests), the signatures, and this llmb's own files. A person who can write to the
folder can fake any bundle's result, but for this user alone.

Evidence stored elsewhere was read in full for the result. Later the places are only asked for the
evidence by name and size: their present content cannot change a result about the same digests.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock

from pydantic import ValidationError

import llmb
from llmb.config import Frozen, environment
from llmb.records.bundle import Bundle, completed
from llmb.submission.clashes import Content
from llmb.submission.elsewhere import EvidencePlaces
from llmb.submission.verify import verify_bundle

#: All results together: 50,000 of 3 kB. Above the limit the oldest are deleted, down to half.
MAX_CACHE_BYTES = 128 * 2**20
#: One result; a larger result, such as one with a long message, is computed again each time.
MAX_RESULT_BYTES = 64 * 2**10


class Verified(Frozen):
    """The part of a verification that a ranking needs."""

    #: Name and message of the first failed check, None if every check passed.
    fault: str | None
    #: Fingerprints of the signing keys; empty if no signature could be checked.
    signers: frozenset[str]
    content: Content


def verified(bundle: Bundle) -> Verified:
    """Return the result of every check of ``bundle``.

    Raises:
        BundleRefusedError: the record cannot be read.
    """
    verification = verify_bundle(bundle)
    failed = [f"{check.name}: {check.message}" for check in verification.checks if not check.ok]
    return Verified(
        fault=failed[0] if failed else None,
        signers=frozenset(one.fingerprint for one in verification.signatures),
        content=verification.content,
    )


def usual_folder() -> Path | None:
    """Return the folder of results: below XDG_CACHE_HOME, or ~/.cache; None without a home."""
    base = environment().get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "llmb", "verified")
    home = os.path.expanduser("~")
    return Path(home, ".cache", "llmb", "verified") if os.path.isabs(home) else None


@dataclass
class Cache:
    """Results of earlier verifications in ``folder``; None keeps no results.

    Several processes may use one folder: a file is written under a temporary name and then renamed.
    An entry that cannot be read, written or parsed is no error: the bundle is verified again.
    """

    folder: Path | None
    #: Places of evidence that is not in the bundles.
    places: EvidencePlaces | None = None
    #: Bytes of the files in the folder, as far as this process knows; None before the first look.
    _bytes: int | None = None
    _lock: Lock = field(default_factory=Lock)

    def verified(self, bundle: Bundle) -> Verified:
        """Return the result of every check of ``bundle``, from the cache if possible.

        Raises:
            BundleRefusedError: the record cannot be read; a refusal is never cached.
            EvidenceNotHereError: evidence is stored elsewhere, and no place has the evidence;
                never cached either.
        """
        if self.folder is None:
            return verified(self._whole(bundle))
        path = self.folder / f"{_key(bundle)}.json"
        found = _load(path)
        if found is None or not self._is_here(bundle):
            found = verified(self._whole(bundle))
            # Without ssh-keygen the signatures are unchecked: next time ssh-keygen may exist.
            if bool(found.signers) == bool(bundle.signatures):
                self._store(path, found.model_dump_json().encode())
        return found

    def _is_here(self, bundle: Bundle) -> bool:
        every = bundle.elsewhere.values()
        return not every or (self.places is not None and all(map(self.places.has, every)))

    def _whole(self, bundle: Bundle) -> Bundle:
        return completed(bundle, None if self.places is None else self.places.take)

    def _store(self, path: Path, content: bytes) -> None:
        if len(content) > MAX_RESULT_BYTES:
            return
        with self._lock:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._bytes is None:
                    self._bytes = _size(path.parent)
                if self._bytes + len(content) > MAX_CACHE_BYTES:
                    self._bytes = _trim(path.parent, MAX_CACHE_BYTES // 2)
                _write(path, content)
                self._bytes += len(content)
            except OSError:
                return


def _key(bundle: Bundle) -> str:
    digest = hashlib.sha256(f"{_verifier()}\n{bundle.bundle_id}\n".encode())
    for name, content in bundle.signatures.items():
        digest.update(f"{name}\n{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def _verifier() -> str:
    """Return a digest of the verifier: llmb's version and files, and Python."""
    digest = hashlib.sha256(f"{llmb.__version__}\n{sys.version}\n".encode())
    root = Path(llmb.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(root).as_posix()
            digest.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _load(path: Path) -> Verified | None:
    try:
        if path.stat().st_size > MAX_RESULT_BYTES:
            return None
        return Verified.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise


def _size(folder: Path) -> int:
    with os.scandir(folder) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def _trim(folder: Path, most: int) -> int:
    """Remove the oldest results until at most ``most`` bytes are left; return the bytes left."""
    with os.scandir(folder) as entries:
        stats = [(entry.stat(follow_symlinks=False), entry.path) for entry in entries]
    total = sum(stat.st_size for stat, _ in stats)
    for stat, path in sorted(stats, key=lambda one: one[0].st_mtime_ns):
        if total <= most:
            break
        os.unlink(path)
        total -= stat.st_size
    return total
