"""Collect records of finished runs from folders; unreadable records are listed and skipped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmb.errors import LlmbError, UsageError
from llmb.records.bundle import RECORD, read_record
from llmb.records.run_record import RunRecord

#: Default folders of runs and submissions.
USUAL = ("runs", "submissions")


@dataclass(frozen=True)
class CollectedBundles:
    """Records without duplicate runs, and one line per unreadable record."""

    records: tuple[RunRecord, ...]
    refused: tuple[str, ...]


def collect(paths: Sequence[Path]) -> CollectedBundles:
    """Return the records at ``paths``: run directories, bundles, record files, folders of them.

    Raises:
        UsageError: a path does not exist, or a folder has no record below.
        BundleRefusedError: a path is a record itself, and the record is damaged or forged.
    """
    records: list[RunRecord] = []
    refused: list[str] = []
    for path in paths:
        if not path.is_dir() or (path / RECORD).exists():
            records.append(read_record(path))
            continue
        before = len(records) + len(refused)
        _take(below(path), records, refused)
        if len(records) + len(refused) == before:
            raise UsageError(f"there is no run in {str(path)!r}: no {RECORD} below it")
    return _once(records, refused)


def collect_usual(here: Path) -> CollectedBundles:
    """Return the records below ``here/runs`` and ``here/submissions``; may be empty."""
    records: list[RunRecord] = []
    refused: list[str] = []
    _take((path for name in USUAL for path in below(here / name)), records, refused)
    return _once(records, refused)


def below(folder: Path) -> Iterator[Path]:
    """Yield every record file below ``folder``, in order; links to folders are not followed."""
    for where, folders, files in os.walk(folder):
        folders.sort()
        if RECORD in files:
            yield Path(where) / RECORD
            folders.clear()  # no search inside a run directory


def _take(paths: Iterable[Path], records: list[RunRecord], refused: list[str]) -> None:
    for path in paths:
        try:
            records.append(read_record(path))
        except LlmbError as error:
            refused.append(f"{path}: {error}")


def _once(records: Iterable[RunRecord], refused: Iterable[str]) -> CollectedBundles:
    first: dict[str, RunRecord] = {}
    for record in records:
        first.setdefault(record.run_id, record)
    return CollectedBundles(tuple(first.values()), tuple(refused))
