"""Bundles wherever they lie, read safely: what cannot be believed is told, not shown."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from llmb.audit.rule import verdict
from llmb.errors import BundleRefusedError, LlmbError, UsageError
from llmb.records import members, strict_json
from llmb.records.bundle import MANIFEST, RECORD, SIGNATURES, Bundle, read_bundle
from llmb.records.run_directory import LOG, MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF
from llmb.records.run_record import RunRecord
from llmb.report.runs import ReportedRun, run_of

#: What of a bundle is shown to a reader as it is.
TEXTS = (MODEL_DIFF, SETTINGS_DIFF, SOURCES_DIFF, LOG)
_INDEX, _INDEX_SCHEMA = "system.json", "llmb.system-index/"
#: Reading and hashing let other threads run; each holds a bundle of up to 256 MiB in memory.
_READERS = 4
#: A stored figure and the one its stamps give may differ by the order of additions.
_SAME = 1e-9


@dataclass(frozen=True)
class Entry:
    """One bundle that could be read, and what its place says of who handed it in."""

    #: Below the folder that was asked for, with forward slashes.
    path: str
    submitter: str | None
    system: str | None
    #: As declared in the system's index; None where it is not.
    availability: str | None
    bundle_id: str
    signatures: tuple[str, ...]
    run: ReportedRun
    #: Texts of the bundle by name: diffs and log.
    texts: Mapping[str, str] = field(repr=False)
    #: Where it was read; of this machine, and never shown.
    place: Path = field(repr=False, compare=False)

    @property
    def record(self) -> RunRecord:
        """The run record of the bundle."""
        return self.run.record


@dataclass(frozen=True)
class RefusedBundle:
    """A bundle that is not shown, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Shelf:
    """Every bundle found, each once, in the order of their paths."""

    entries: tuple[Entry, ...]
    refused: tuple[RefusedBundle, ...]


def gather(paths: Sequence[Path]) -> Shelf:
    """Return the bundles at and below ``paths``: folders of submissions, bundles, zips.

    A damaged one is among the refused; so is one whose headline does not follow from its stamps,
    whose verdict does not follow from its findings, or that is there already. The same bundle as
    folder and as zip counts once.

    Raises:
        UsageError: there is nothing at a path, or no bundle anywhere below it.
    """
    places: list[tuple[Path, str]] = []
    for root in paths:
        found = list(_places(root))
        if not found:
            raise UsageError(f"there is no bundle in {str(root)!r}: no {MANIFEST} below it")
        places += found
    with ThreadPoolExecutor(_READERS) as pool:
        every = list(pool.map(lambda place: _read(place[0], place[1]), places))
    return _once(every)


def _places(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the place and the name of every bundle at or below ``root``, in order."""
    if not root.exists():
        raise UsageError(f"there is nothing at {str(root)!r}: name a folder of bundles")
    if not root.is_dir() or _is_bundle(os.listdir(root)):
        indexed = (root.absolute().parent.parent / _INDEX).is_file()
        yield root, "/".join(root.absolute().parts[-4:]) if indexed else root.name
        return
    for where, folders, files in os.walk(root):
        folders.sort()
        here = Path(where)
        if here != root and _is_bundle(files):
            yield here, here.relative_to(root).as_posix()
            folders.clear()  # what lies in a bundle belongs to it
            continue
        for name in sorted(files):
            if name.endswith(".zip"):
                yield here / name, (here / name).relative_to(root).as_posix()


def _is_bundle(names: Sequence[str]) -> bool:
    # A bundle that has lost its manifest is a damaged one, not none.
    return MANIFEST in names or RECORD in names


def _read(place: Path, name: str) -> Entry | RefusedBundle:
    try:
        bundle = read_bundle(place)
        run = run_of(bundle.record())
        fault = _contradiction(run)
        if fault is not None:
            raise BundleRefusedError(f"{fault}: llmb verify says more")
        return _entry(place, name, bundle, run)
    except LlmbError as error:
        return RefusedBundle(name, str(error).replace(str(place), name))


def _contradiction(run: ReportedRun) -> str | None:
    """Return what of the headline does not follow from the record itself, None if all does."""
    record, result = run.record, run.record.result
    for key in ("tokens_per_second", "tokens_per_second_per_device"):
        stated, computed = getattr(result, key), run.values[key]
        if not math.isclose(stated, computed, rel_tol=_SAME):
            return f"it says {key} {stated:g}, its stamps give {computed:g}"
    config, work = record.config, record.workload
    if (work.name, work.mode) != (config.workload, config.mode.value):
        return f"it says {work.name} {work.mode}, what ran is {config.workload} {config.mode.value}"
    if record.topology.world_size != config.parallelism.world_size:
        return f"it says {record.topology.world_size} devices, its mesh is another size"
    low, high = result.ci95 or (result.tokens_per_second,) * 2
    if not low <= result.tokens_per_second * (1 + _SAME) or not result.tokens_per_second <= high:
        return f"its interval from {low:g} to {high:g} does not hold its figure"
    # REPRODUCED is never said by a bundle of itself: it follows from others that repeat it.
    derived = verdict(record.audit.findings)
    if record.audit.verdict is not derived:
        return f"it says {record.audit.verdict.value}, its findings add up to {derived.value}"
    return None


def _entry(place: Path, name: str, bundle: Bundle, run: ReportedRun) -> Entry:
    parts = PurePosixPath(name).parts
    submitter, system = parts[-4:-2] if len(parts) >= 4 else (None, None)
    index = _index(place)
    for key, by_place in (("submitter", submitter), ("system", system)):
        if index and by_place is not None and index.get(key) != by_place:
            raise BundleRefusedError(
                f"the index of its system names {key} {index.get(key)!r}, and it lies in another's"
            )
    availability = index.get("availability")
    return Entry(
        path=name,
        submitter=submitter or index.get("submitter"),
        system=system or index.get("system"),
        availability=availability if isinstance(availability, str) else None,
        bundle_id=bundle.bundle_id,
        signatures=tuple(sorted(n for n in bundle.files if n.startswith(SIGNATURES))),
        run=run,
        texts={
            name: bundle.files[name].decode("utf-8", errors="backslashreplace")
            for name in TEXTS
            if name in bundle.files
        },
        place=place,
    )


def _index(place: Path) -> dict[str, Any]:
    """Return the index of the system that the bundle at ``place`` belongs to; empty if none."""
    path = place.absolute().parent.parent / _INDEX
    if not path.is_file():
        return {}
    data = strict_json.loads(members.read_file(path), _INDEX)
    is_index = isinstance(data, dict) and str(data.get("schema")).startswith(_INDEX_SCHEMA)
    texts = is_index and all(isinstance(data.get(key), str) for key in ("submitter", "system"))
    return data if texts else {}


def _once(every: Sequence[Entry | RefusedBundle]) -> Shelf:
    entries: dict[str, Entry] = {}
    runs: dict[str, Entry] = {}
    refused: list[RefusedBundle] = []
    for one in every:
        if isinstance(one, RefusedBundle):
            refused.append(one)
            continue
        there = entries.get(one.bundle_id) or runs.get(one.record.run_id)
        if there is None:
            entries[one.bundle_id] = runs[one.record.run_id] = one
        elif _is_its_zip(one, there):
            if there.path.endswith(".zip"):
                entries[one.bundle_id] = replace(there, path=one.path)
        else:
            refused.append(RefusedBundle(one.path, f"the run of it is that of {there.path!r}"))
    shown = sorted(entries.values(), key=lambda entry: entry.path)
    return Shelf(tuple(shown), tuple(sorted(refused, key=lambda one: one.path)))


def _is_its_zip(one: Entry, there: Entry) -> bool:
    """Tell whether one of two is the zip of the other, beside it."""
    same = one.bundle_id == there.bundle_id
    return same and one.path.removesuffix(".zip") == there.path.removesuffix(".zip")
