"""Find bundles in folders and zips, verify each bundle, and list refusals with reasons."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from llmb.errors import BundleRefusedError, EvidenceNotHereError, LlmbError, UsageError
from llmb.records.bundle import MANIFEST, RECORD, Bundle, read_partly
from llmb.records.run_directory import LOG, MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF
from llmb.records.run_record import RunRecord
from llmb.records.submission import Submission
from llmb.records.system_index import INDEX, read_index
from llmb.submission import time_stamps
from llmb.submission.clashes import Content, Placed, clashes
from llmb.submission.history import arrival
from llmb.submission.runs import ReportedRun, run_of
from llmb.submission.verified import Verified, verified

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

#: Text files of a bundle for the page, such as the log.
TEXTS = (MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF, LOG)
#: Threads that read bundles. Reading and hashing release the GIL; each thread holds a bundle of up
#: to 256 MiB in memory.
_READERS = 4
Verifier = Callable[[Bundle], Verified]


@dataclass(frozen=True)
class Entry:
    """One readable bundle, with submitter and system from manifest, index or path."""

    #: Path relative to the given folder, with forward slashes.
    path: str
    submitter: str | None
    system: str | None
    #: Submission data in the bundle's manifest; None in older manifests.
    whose: Submission | None
    #: Availability as declared in the manifest, else in the index of the system.
    availability: str | None
    bundle_id: str
    #: File names of all signatures; fingerprints of the keys of checked signatures.
    signatures: tuple[str, ...]
    signers: frozenset[str]
    run: ReportedRun
    #: File name -> text of the bundle's diffs and log.
    texts: Mapping[str, str] = field(repr=False)
    #: Lower bound of tokens/s in the window, by the clock of a listed authority; None: no bound.
    by_foreign_clock: float | None = field(default=None, kw_only=True)
    #: Path of the bundle on this machine, never shown to readers.
    place: Path = field(repr=False, compare=False)

    @property
    def record(self) -> RunRecord:
        """The run record of the bundle."""
        return self.run.record


@dataclass(frozen=True)
class _Read:
    """A verified bundle, and content that must be unique among bundles, such as the run id."""

    entry: Entry
    content: Content


@dataclass(frozen=True)
class RefusedBundle:
    """A bundle that is not shown, and the reason."""

    path: str
    reason: str
    #: True: no check failed, but evidence stored outside the bundle was not available.
    is_unread: bool = False


@dataclass(frozen=True)
class Shelf:
    """All bundles found, without duplicates, ordered by path."""

    entries: tuple[Entry, ...]
    refused: tuple[RefusedBundle, ...]


def gather(
    paths: Sequence[Path],
    verifier: Verifier = verified,
    authorities: Sequence[Certificate] = (),
) -> Shelf:
    """Return the bundles at and below ``paths``: folders of submissions, bundles, zips.

    Each bundle is read and verified once. Reasons for a refusal:

    - the bundle cannot be read;
    - ``llmb verify`` fails; the reason is the first failed check;
    - the bundle is in the folder of another submitter or system;
    - an earlier bundle has the same run id, nonce or evidence.

    Folder and zip of the same bundle count once.

    Args:
        paths: folders or files to search.
        verifier: verifies a bundle in memory, without evidence outside the bundle. Example: a
            verifier with a cache of results.
        authorities: certificates of accepted time-stamp authorities.

    Raises:
        UsageError: a path does not exist, is a run directory, or has no bundle at or below.
    """
    places: list[tuple[Path, str]] = []
    for root in paths:
        found = list(_places(root))
        if (root / RECORD).is_file() and not (root / MANIFEST).exists():
            raise UsageError(
                f"{root} is a run directory, and bundles are ranked: llmb package-submission {root}"
            )
        if not found:
            raise UsageError(f"there is no bundle in {str(root)!r}: no {MANIFEST} below it")
        places += found
    with ThreadPoolExecutor(_READERS) as pool:
        every = list(pool.map(lambda at: _read(at[0], at[1], verifier, authorities), places))
    return _shelf(every)


def _places(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield path and display name of every bundle at or below ``root``, in order."""
    if not root.exists():
        raise UsageError(f"there is nothing at {str(root)!r}: name a folder of bundles")
    if not root.is_dir() or _is_bundle(os.listdir(root)):
        indexed = (root.absolute().parent.parent / INDEX).is_file()
        yield root, "/".join(root.absolute().parts[-4:]) if indexed else root.name
        return
    for where, folders, files in os.walk(root):
        folders.sort()
        here = Path(where)
        if here != root and _is_bundle(files):
            yield here, here.relative_to(root).as_posix()
            folders.clear()  # no search inside a bundle
            continue
        for name in sorted(files):
            if name.endswith(".zip"):
                yield here / name, (here / name).relative_to(root).as_posix()


def _is_bundle(names: Sequence[str]) -> bool:
    # A folder with a record but no manifest is a damaged bundle.
    return MANIFEST in names or RECORD in names


def _read(
    place: Path, name: str, verifier: Verifier, authorities: Sequence[Certificate]
) -> _Read | RefusedBundle:
    try:
        bundle = read_partly(place)
        result = verifier(bundle)
        if result.fault is not None:
            raise BundleRefusedError(result.fault)
        entry = _entry(place, name, bundle, result)
        clock = time_stamps.bound(bundle, entry.record, authorities)
        return _Read(replace(entry, by_foreign_clock=clock), result.content)
    except LlmbError as error:
        above = str(place.absolute().parent.parent)
        words = str(error).replace(str(place), name).replace(f"{above}{os.sep}", "")
        return RefusedBundle(name, words, isinstance(error, EvidenceNotHereError))


def _entry(place: Path, name: str, bundle: Bundle, result: Verified) -> Entry:
    parts = PurePosixPath(name).parts
    submitter, system = parts[-4:-2] if len(parts) >= 4 else (None, None)
    path = place.absolute().parent.parent / INDEX
    index = read_index(path) if path.is_file() else None  # refuses an index in a wrong folder
    if index is not None:
        submitter, system = index.submitter, index.system
    whose = bundle.submission
    if whose is not None:
        if index is not None and (whose.submitter, whose.system) != (submitter, system):
            its = f"{whose.submitter}/{whose.system}"
            raise BundleRefusedError(f"it says it is of {its}, and lies in {submitter}/{system}")
        submitter, system = whose.submitter, whose.system
    said = whose.availability if whose else None
    return Entry(
        path=name,
        submitter=submitter,
        system=system,
        whose=whose,
        availability=said or (index.availability if index else None),
        bundle_id=bundle.bundle_id,
        signatures=tuple(bundle.signatures),
        signers=result.signers,
        run=run_of(bundle.record()),
        texts={
            name: bundle.files[name].decode("utf-8", errors="backslashreplace")
            for name in TEXTS
            if name in bundle.files
        },
        place=place,
    )


def _shelf(every: Sequence[_Read | RefusedBundle]) -> Shelf:
    refused = [one for one in every if isinstance(one, RefusedBundle)]
    read: dict[str, _Read] = {}  # two paths to one bundle count once
    for one in every:
        if isinstance(one, _Read):
            read.setdefault(os.path.realpath(one.entry.place), one)
    placed = [
        Placed(one.entry.path, one.entry.place, one.entry.bundle_id, one.content)
        for one in read.values()
    ]
    bad = clashes(placed, arrival)
    refused += [RefusedBundle(o.path, f"clash: {bad[o.place]}") for o in placed if o.place in bad]
    entries: dict[str, Entry] = {}
    for entry in (one.entry for one in read.values() if one.entry.place not in bad):
        there = entries.get(entry.bundle_id)
        # Two remaining bundles with one id are a folder and its zip: the folder is kept.
        if there is None or there.path.endswith(".zip"):
            entries[entry.bundle_id] = entry
    shown = sorted(entries.values(), key=lambda entry: entry.path)
    return Shelf(tuple(shown), tuple(sorted(refused, key=lambda one: one.path)))
