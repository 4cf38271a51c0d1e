"""The file of the history, ``history.jsonl``: JSON Lines, appended to by any number of writers.

A writer holds a lock of the operating system (``flock``), which ends with the process: a killed
writer blocks nobody. A killed writer may leave the beginning of a line; the next writer removes
the beginning, and no other line is touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llmb.errors import BundleRefusedError, RunFailedError, UsageError
from llmb.history.line import SCHEMA, HistoryLine
from llmb.records import strict_json
from llmb.records.bundle import parse_model
from llmb.records.canonical import as_json

FILE = "history.jsonl"
#: Longest line that is read, in bytes; a line of llmb has about 900.
MAX_LINE_BYTES = 16 * 2**10
#: Most lines that are read: the newest count. Example: 100,000 lines are 90 MB.
MAX_LINES = 100_000
#: Every line of llmb begins so: a fragment with this beginning is a torn line of llmb's own.
_BEGINNING = f'{{"schema":"{SCHEMA}",'.encode()
_TRIES, _PAUSE_S = 500, 0.02  # 10 s
#: How often a history that another process replaces or deletes is opened again.
_MOST_REPLACED = 20


@dataclass(frozen=True)
class History:
    """The lines of a history in the order of the file."""

    lines: tuple[HistoryLine, ...]
    #: Reason -> number of lines that were skipped, such as ``broken: 2``.
    skipped: Mapping[str, int]

    @property
    def skipped_words(self) -> str:
        """The skipped lines in words, or "". Example: ``3 lines skipped: 2 broken, 1 too long``."""
        total = sum(self.skipped.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())
        return f"{total} line{'' if total == 1 else 's'} skipped: {reasons}" if total else ""


def append(path: Path, lines: Sequence[HistoryLine], *, once: bool = False) -> int:
    """Append ``lines`` to the history at ``path``, and return the number of appended lines.

    ``once``: a run whose id is in the history already is left out.

    Raises:
        UsageError: no regular file is at ``path``, or the file cannot be opened.
        RunFailedError: another process holds the lock for 10 s, or the disk is full; the file then
            has the same lines as before.
    """
    with _locked(path) as descriptor:
        try:
            _mend(descriptor)
            chosen = list(lines)
            if once:
                known = {line.run_id for line in _parsed(descriptor, Counter())}
                chosen = [line for line in lines if line.run_id not in known]
            _write(descriptor, b"".join(map(_text, chosen)))
        except OSError as error:
            raise RunFailedError(
                f"{str(path)!r}: cannot add to the history ({error.strerror})"
            ) from None
    return len(chosen)


def read(path: Path) -> History:
    """Return the newest 100,000 lines of the history at ``path``.

    A line is skipped and counted if the line is longer than 16 KiB, is no strict JSON (NaN, a key
    twice, half of a surrogate pair), or has other fields than ``HistoryLine``. A torn last line is
    counted as broken.

    Raises:
        UsageError: no readable regular file is at ``path``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"no history at {str(path)!r} ({error.strerror})") from None
    try:
        _check_regular(descriptor, path)
        _lock(descriptor, fcntl.LOCK_SH)  # without a lock a line may be half written: skipped
        skipped: Counter[str] = Counter()
        found = tuple(_parsed(descriptor, skipped))
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    return History(found, dict(skipped))


def _text(line: HistoryLine) -> bytes:
    """Return ``line`` as ASCII JSON with an end of line: no other line end can be in a text."""
    return json.dumps(as_json(line), separators=(",", ":")).encode("ascii") + b"\n"


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Yield the file at ``path``, created if need be, open for appending and locked.

    A writer that waited for the lock may hold a file that was deleted or replaced meanwhile: the
    file is then opened again.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(_MOST_REPLACED):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise UsageError(f"{str(path)!r}: no history there ({error.strerror})") from None
        try:
            _check_regular(descriptor, path)
            if not _lock(descriptor, fcntl.LOCK_EX):
                raise RunFailedError(
                    f"{str(path)!r}: another process holds the lock of the history"
                )
            if _is_at(path, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)
    raise RunFailedError(f"{str(path)!r}: other processes go on replacing the history")


def _check_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise UsageError(f"{str(path)!r} is no regular file: a history is a file of JSON Lines")


def _lock(descriptor: int, kind: int) -> bool:
    """Lock the file, and tell whether the lock came within 10 s."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _mend(descriptor: int) -> None:
    """End the last line of the file: the lines of this writer must begin on a line of their own.

    A torn line of llmb is removed. A whole line without its end gets the end, and so does any other
    text, which is none of llmb's to remove.
    """
    size = os.fstat(descriptor).st_size
    begin = max(0, size - MAX_LINE_BYTES)
    tail = os.pread(descriptor, MAX_LINE_BYTES, begin)
    if not tail or tail.endswith(b"\n"):
        return
    fragment = tail[tail.rfind(b"\n") + 1 :]
    whole = len(fragment) < len(tail) or begin == 0
    is_own = fragment.startswith(_BEGINNING) or _BEGINNING.startswith(fragment)
    if whole and is_own and _line(fragment) is None:
        os.ftruncate(descriptor, size - len(fragment))
    else:
        _write(descriptor, b"\n")


def _write(descriptor: int, data: bytes) -> None:
    """Append all of ``data``, or nothing."""
    size = os.fstat(descriptor).st_size
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def _parsed(descriptor: int, skipped: Counter[str]) -> Iterator[HistoryLine]:
    """Yield the readable lines of the file, counting the others."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        total = sum(1 for _ in _raw(file))
        file.seek(0)
        for number, raw in enumerate(_raw(file)):
            if number < total - MAX_LINES:
                skipped["older"] += 1
            elif len(raw) > MAX_LINE_BYTES:
                skipped["too long"] += 1
            elif raw.strip():
                found = _line(raw) if raw.endswith(b"\n") else None
                if found is None:
                    skipped["broken"] += 1
                else:
                    yield found


def _raw(file: IO[bytes]) -> Iterator[bytes]:
    """Yield each line of ``file``, of a long line only a beginning over 16 KiB."""
    file.seek(0)
    while raw := file.readline(MAX_LINE_BYTES + 1):
        part = raw
        while part and not part.endswith(b"\n"):
            part = file.readline(MAX_LINE_BYTES + 1)
        yield raw


def _line(raw: bytes) -> HistoryLine | None:
    """Return the line in ``raw``, None if this llmb cannot read the line."""
    try:
        return parse_model(HistoryLine, strict_json.loads(raw, FILE), FILE)
    except BundleRefusedError:
        return None
