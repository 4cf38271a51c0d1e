"""Names for runs: ``latest``, ``latest~1``, a tag, and the beginning of a run directory's name.

The order of runs is the order of their names, which begin with the time of the start:
``20261101T120000Z-llama-1.4b-BF16-cpu`` is older than ``20261102T090000Z-llama-1.4b-BF16-cpu``.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from llmb.errors import UsageError, nearest
from llmb.records.run_tags import LATEST, tags_of

#: As in ``run_directory`` and ``bundle``, which load every model of a record: 0.5 s.
RECORD = "record.json"
#: Start of a run directory's name, as ``RunDirectory`` writes the name.
STAMP = "%Y%m%dT%H%M%SZ"
_STAMPED = re.compile(r"([0-9]{8}T[0-9]{6}Z)-(.*?)(?:-([0-9]{1,3}))?", re.DOTALL)
_BACK = re.compile(r"(.+)~([0-9]{1,6})", re.DOTALL)
#: Most names in an error message, and most letters of a typed name.
_MOST_SHOWN, _MOST_LETTERS = 8, 100


@dataclass(frozen=True)
class NamedRun:
    """A run directory: a folder named by a time, or a folder with a record."""

    path: Path
    #: UTC time of the start by the folder's name, such as ``20261101T120000Z``. Of a renamed
    #: folder: the time when ``record.json`` was written.
    stamp: str
    #: False: the run goes on, ended without a result, or lost the record.
    has_record: bool

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags of the run, sorted."""
        return tags_of(self.path)


def find_run(text: str, folder: Path) -> Path:
    """Return the path of the run called ``text``, in the folder of runs ``folder``.

    The first of these decides: an existing path; ``latest``, the latest run with a record, and
    ``latest~N``, the N-th before; a tag, such as ``nightly`` for the latest run with the tag, and
    ``nightly~N``; the beginning of the name of a single run. Other text with a slash, ``.json`` or
    ``.zip`` is returned as a path, for the reader of the file to refuse.

    Raises:
        UsageError: no run has the name, or several runs have names that begin with ``text``.
    """
    path = Path(text)
    if not text or os.path.lexists(path):
        return path
    runs = runs_in(folder)
    found = _by_age(text, runs, folder)
    if found is not None:
        return found.path
    begun = [run for run in runs if run.path.name.startswith(text)]
    exact = [run for run in begun if run.path.name == text]
    if len(exact or begun) == 1:
        return (exact or begun)[0].path
    if begun:
        raise UsageError(
            f"{text[:_MOST_LETTERS]!r} begins the names of {_shown(begun)}: type more of the name"
        )
    if os.sep in text or path.suffix in (".json", ".zip"):
        return path
    shown = repr(text[:_MOST_LETTERS])
    raise UsageError(f"{shown} is neither a path nor a run in {folder}{_instead(text, runs)}")


def runs_in(folder: Path) -> tuple[NamedRun, ...]:
    """Return the run directories in ``folder``, the oldest first; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return ()
    found = [run for name in names if (run := _run_at(folder / name)) is not None]
    return tuple(sorted(found, key=_age))


def is_run(path: Path) -> bool:
    """Tell whether ``path`` is a run directory: a folder named by a time, or with a record."""
    return path.is_dir() and _run_at(path) is not None


def newer_without_record(runs: Sequence[NamedRun]) -> NamedRun | None:
    """Return the newest run if it has no record, so that ``latest`` is an older run; else None."""
    return runs[-1] if runs and not runs[-1].has_record else None


def known_names(folder: Path) -> list[str]:
    """Return ``latest``, every tag, and every run directory's name, the newest first."""
    runs = runs_in(folder)
    names = [LATEST] if any(run.has_record for run in runs) else []
    return [*names, *_tags(runs), *(run.path.name for run in reversed(runs))]


def known_tags(folder: Path) -> list[str]:
    """Return every tag of the runs in ``folder``, sorted."""
    return _tags(runs_in(folder))


def _run_at(path: Path) -> NamedRun | None:
    named = _STAMPED.fullmatch(path.name)
    try:
        record = os.stat(path / RECORD, follow_symlinks=False)
    except OSError:
        return NamedRun(path, named[1], has_record=False) if named else None
    has_record = stat.S_ISREG(record.st_mode)
    if named:
        return NamedRun(path, named[1], has_record=has_record)
    written = datetime.fromtimestamp(record.st_mtime, timezone.utc)
    return NamedRun(path, written.strftime(STAMP), has_record=True) if has_record else None


def _age(run: NamedRun) -> tuple[str, str, int]:
    """Return the order of runs: the time, then the number of runs of the same second."""
    named = _STAMPED.fullmatch(run.path.name)
    return (run.stamp, named[2], int(named[3] or 0)) if named else (run.stamp, run.path.name, 0)


def _by_age(text: str, runs: Sequence[NamedRun], folder: Path) -> NamedRun | None:
    """Return the run called ``latest``, a tag, or either with ``~N``; None for another name.

    Raises:
        UsageError: there are fewer runs of the name.
    """
    back = _BACK.fullmatch(text)
    name, count = (back[1], int(back[2])) if back else (text, 0)
    if name == LATEST:
        found = [run for run in runs if run.has_record]
    else:
        tagged = [run for run in runs if name in run.tags]
        found = [run for run in tagged if run.has_record]
        if tagged and not found:
            raise UsageError(
                f"{text!r}: the tag {name} is on {_shown(tagged)}, without a record; name the "
                "folder to see its log.txt"
            )
        if not tagged:
            return None
    if count < len(found):
        return found[-1 - count]
    kind = f"with the tag {name}" if name != LATEST else "with a record"
    there = f"{len(found)} run{'s' * (len(found) != 1)} {kind} in {folder}"
    raise UsageError(f"{text!r}: there {'is' if len(found) == 1 else 'are'} {there}")


def _tags(runs: Sequence[NamedRun]) -> list[str]:
    return sorted({tag for run in runs for tag in run.tags})


def _shown(runs: Sequence[NamedRun]) -> str:
    """Return the newest of ``runs`` in words, the oldest first."""
    names = [run.path.name for run in runs[-_MOST_SHOWN:]]
    more = f"{len(runs) - len(names)} more, " if len(runs) > len(names) else ""
    return f"{len(runs)} run{'s' * (len(runs) != 1)} ({more}{', '.join(names)})"


def _instead(text: str, runs: Sequence[NamedRun]) -> str:
    """Return the end of the message for an unknown name: names nearest to ``text``."""
    if not runs:
        return ", which holds no run"
    names = nearest(text.partition("~")[0], [LATEST, *_tags(runs), *(r.path.name for r in runs)])
    return f"; did you mean {' or '.join(names)}?" if names else "; `llmb list` shows the names"
