"""Makes the index of a submitted system: submitted precisions, and reasons for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llmb.errors import BundleRefusedError, UsageError
from llmb.records.bundle import MANIFEST, read_partly
from llmb.records.canonical import pretty_bytes
from llmb.records.submission import Submission
from llmb.records.system_index import (
    INDEX,
    PRECISIONS,
    Submitted,
    SystemIndex,
    read_index,
)

_NO_REASON = "no run submitted"


def existing_bundles(folder: Path) -> dict[str, str]:
    """Return path below ``folder`` -> precision of every existing bundle.

    Raises:
        BundleRefusedError: a bundle is damaged.
    """
    found = {}
    for manifest in _manifests(folder):
        bundle = manifest.parent
        try:
            precision = read_partly(bundle).record().precision
        except BundleRefusedError as error:
            message = f"the bundle already in {str(bundle)!r} is damaged, remove it first: {error}"
            raise BundleRefusedError(message) from None
        name = bundle.relative_to(folder).as_posix()
        found[name] = precision.effective or precision.declared
    return found


def with_availability(folder: Path, whose: Submission) -> Submission:
    """Return ``whose``, with an availability of None replaced by the one in ``folder``'s index.

    Raises:
        BundleRefusedError: the existing index cannot be read.
    """
    if whose.availability is not None or not (folder / INDEX).exists():
        return whose
    return whose.model_copy(update={"availability": read_index(folder / INDEX).availability})


def make(
    folder: Path, whose: Submission, bundles: Mapping[str, str], reasons: Mapping[str, str]
) -> SystemIndex:
    """Return the index of ``bundles`` (path -> precision); earlier declarations are kept.

    Raises:
        UsageError: a reason is given for a precision that was submitted.
        BundleRefusedError: the existing index cannot be read.
    """
    for precision in reasons.keys() & set(bundles.values()):
        raise UsageError(f"--missing {precision}=...: a bundle in {precision} is there")
    before = read_index(folder / INDEX) if (folder / INDEX).exists() else None
    if before is not None:
        earlier = {name: entry.missing for name, entry in before.precisions.items()}
        reasons = {**{name: why for name, why in earlier.items() if why}, **reasons}
    names = dict.fromkeys([*PRECISIONS, *sorted({*bundles.values(), *reasons})])
    precisions = {}
    for name in names:
        paths = tuple(sorted(path for path, has in bundles.items() if has == name))
        missing = None if paths else reasons.get(name, _NO_REASON)
        precisions[name] = Submitted(bundles=paths, missing=missing)
    return SystemIndex(
        submitter=whose.submitter,
        system=whose.system,
        availability=whose.availability,
        precisions=precisions,
    )


def fault(path: Path) -> str | None:
    """Return why the index in file ``path`` does not fit the bundles in the folder, or None.

    Raises:
        BundleRefusedError: the index cannot be read.
    """
    index, folder = read_index(path), path.parent
    listed = {bundle for entry in index.precisions.values() for bundle in entry.bundles}
    there = {found.parent.relative_to(folder).as_posix() for found in _manifests(folder)}
    for bundle in sorted(listed ^ there):
        return f"{bundle!r} is {'listed and not there' if bundle in listed else 'not listed'}"
    return None


def _manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"[!.]*/[!.]*/{MANIFEST}"))


def index_bytes(index: SystemIndex) -> bytes:
    """Return ``index`` as JSON bytes for the disk."""
    return pretty_bytes(index)
