"""The owners of submission folders: ``allowed_signers``, an ssh file with one owner per line.

A line: the submitter's id, ssh's options, the public key, then for people the organisation, and
``@name`` for each account of the repository's host that may remove the owner's bundles. Example:

    acme namespaces="llmb-bundle" ssh-ed25519 AAAA... Acme, Inc. @jane-acme
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from llmb.errors import BundleRefusedError
from llmb.records.submission import slug_fault

#: The file's name, below the folder of all submissions.
OWNERS = "allowed_signers"
_LINE = re.compile(
    r'(?P<ids>\S+)[ \t]+(?:(?P<options>(?:[a-z-]+(?:="[^"]*")?,?)+)[ \t]+)?'
    r"(?P<key>(?:ssh|ecdsa|sk)-\S+[ \t]+[A-Za-z0-9+/=]+)(?:[ \t]+(?P<words>.*))?"
)


@dataclass(frozen=True)
class OwnerLine:
    """One line: one key of one or several owners."""

    text: str
    owners: frozenset[str]
    organisation: str | None
    #: Accounts, in lower case, without the ``@``.
    accounts: frozenset[str]
    #: Fingerprint of the key as ``ssh-keygen -l`` prints it, such as ``SHA256:uNiV...``.
    fingerprint: str


@dataclass(frozen=True)
class Party:
    """The listed keys of a submitter, and the organisation; both are empty for an unlisted id."""

    fingerprints: frozenset[str] = frozenset()
    organisation: str | None = None


def party(lines: Iterable[OwnerLine], submitter: str | None) -> Party:
    """Return the keys and the organisation that ``lines`` list for ``submitter``."""
    own = [line for line in lines if submitter in line.owners]
    names = (line.organisation for line in own if line.organisation)
    return Party(frozenset(line.fingerprint for line in own), next(names, None))


def read(content: bytes) -> tuple[OwnerLine, ...]:
    """Return the lines of a file of owners, without comments and empty lines.

    Raises:
        BundleRefusedError: the file is not UTF-8, or a line has another form, belongs to a
            certificate authority, or lists ids that no submitter can have.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleRefusedError(f"{OWNERS} is not UTF-8 at byte {error.start}") from None
    lines = enumerate(text.split("\n"), start=1)
    return tuple(
        _read(line.strip(), number)
        for number, line in lines
        if line.strip() and not line.lstrip().startswith("#")
    )


def remarks(content: bytes) -> frozenset[str]:
    """Return the comments of a file of owners, which people read beside the lines."""
    lines = content.decode("utf-8", errors="replace").split("\n")
    return frozenset(line.strip() for line in lines if line.lstrip().startswith("#"))


def _read(line: str, number: int) -> OwnerLine:
    found = _LINE.fullmatch(line)
    if found is None or not line.isprintable():
        raise BundleRefusedError(f"{OWNERS}: line {number} is not: id, options, public key, names")
    owners = found["ids"].split(",")
    for one in owners:
        fault = slug_fault(one)
        if fault is not None:
            raise BundleRefusedError(f"{OWNERS}: line {number}: {one[:60]!r} {fault}")
    if "cert-authority" in (found["options"] or ""):
        raise BundleRefusedError(f"{OWNERS}: line {number} is of an authority: list its keys")
    words = (found["words"] or "").split()
    accounts = frozenset(word[1:].lower() for word in words if word.startswith("@"))
    organisation = " ".join(word for word in words if not word.startswith("@")) or None
    try:
        blob = base64.b64decode(found["key"].split()[1], validate=True)
    except binascii.Error:
        raise BundleRefusedError(f"{OWNERS}: line {number}: the key is not base64") from None
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return OwnerLine(line, frozenset(owners), organisation, accounts, f"SHA256:{digest}")
