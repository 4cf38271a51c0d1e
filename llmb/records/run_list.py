"""One line per run directory: a few fields of the record, read fast and without trust.

The fields are the record's own words; ``llmb verify`` checks a record. A record of 39 KB takes
0.4 ms here and 14 ms in ``bundle.read_record``, which also checks every other field.
"""

from __future__ import annotations

import math
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from llmb.errors import LlmbError
from llmb.records import members, strict_json
from llmb.records.run_names import RECORD, STAMP, NamedRun

_LOG, _NOT_FINISHED = "log.txt", re.compile(r"the run did not finish: (.*)")
#: Bytes at the end of ``log.txt`` with the reason of a failed run; longer logs exist.
_END_BYTES = 4096
#: Most characters of a field, and of a reason.
_MOST = 200
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
#: As in ``run_record`` and ``finding``, which load every model of a record: 0.5 s.
CLASSES = ("official", "debug")
VERDICTS = ("INVALID", "UNVERIFIED", "FLAGGED", "CONSISTENT", "REPRODUCED")
#: Most characters of a name in a record, such as a plugin's.
_MOST_NAME = 64

#: As in ``measure.statistics``, which loads every model of a record: 0.5 s.
LEAST_SHOWN = 3


@dataclass(frozen=True)
class RunLine:
    """A run directory in a list. None: the run has no record, or no readable record."""

    name: str
    path: Path
    #: UTC, such as ``2026-11-01T12:00:00Z``; without a record by the folder's name.
    created_utc: str
    tags: tuple[str, ...]
    workload: str | None = None
    mode: str | None = None
    precision: str | None = None
    plugin: str | None = None
    device: str | None = None
    #: ``official`` or ``debug``.
    run_class: str | None = None
    tokens_per_second: float | None = None
    #: 95 % interval of ``tokens_per_second``; None if not measured.
    ci95: tuple[float, float] | None = None
    #: Number of values behind ``ci95``: repeats, or fence blocks of one repeat.
    interval_values: int = 0
    verdict: str | None = None
    #: Reason for a missing record, or a mark of an early end; None for a complete run.
    note: str | None = None

    @property
    def shown_ci95(self) -> tuple[float, float] | None:
        """``ci95``, or None if fewer than three values are behind it."""
        return self.ci95 if self.interval_values >= LEAST_SHOWN else None

    @property
    def state(self) -> str:
        """The note in a word or two, such as ``damaged``; empty for a complete run."""
        return (self.note or "").partition(":")[0]


class _DamagedError(Exception):
    """A field of a record is missing or has another type."""


def line_of(run: NamedRun) -> RunLine:
    """Return the line of ``run``; a damaged, huge or missing record becomes a note."""
    base = RunLine(run.path.name, run.path, _date(run.stamp), run.tags)
    if not run.has_record:
        return _noted(base, _why_no_record(run.path))
    try:
        raw = members.read_file(run.path / RECORD, strict_json.MAX_BYTES, follow=False)
        return _read(base, from_json(raw, allow_inf_nan=False))
    except (_DamagedError, ValueError) as error:
        return _noted(base, f"damaged: {RECORD}: {' '.join(str(error).split())[:_MOST]}")
    except LlmbError as error:
        return _noted(base, f"not read: {str(error)[:_MOST]}")


def _noted(base: RunLine, note: str) -> RunLine:
    return RunLine(base.name, base.path, base.created_utc, base.tags, note=note)


def _read(base: RunLine, record: Any) -> RunLine:
    """Return the line of a parsed record.

    Raises:
        _DamagedError: a field is missing or has another type.
    """
    early = _at(record, "interruption", default=None)
    created, run_class = _text(record, "created_utc"), _text(record, "class")
    verdict = _text(record, "audit", "verdict")
    if not _DATE.fullmatch(created) or run_class not in CLASSES or verdict not in VERDICTS:
        raise _DamagedError("time, class or verdict is none of llmb's")
    return RunLine(
        base.name,
        base.path,
        created,
        base.tags,
        workload=_text(record, "workload", "name"),
        mode=_text(record, "workload", "mode"),
        precision=_text(record, "config", "precision", "name"),
        plugin=_text(record, "config", "plugin"),
        device=_text(record, "config", "device"),
        run_class=run_class,
        tokens_per_second=_number(_at(record, "result", "tokens_per_second")),
        ci95=_interval(_at(record, "result", "ci95")),
        interval_values=_interval_values(_at(record, "timing", "repeats")),
        verdict=verdict,
        note=None if early is None else "ended early",
    )


def _at(value: Any, *keys: str, **default: None) -> Any:
    """Return the value below ``keys``; a missing last key gives ``default``, if given."""
    for key in keys:
        if not isinstance(value, dict) or (key not in value and not default):
            raise _DamagedError(f"no {'.'.join(keys)}")
        value = value.get(key)
    return value


def _text(record: Any, *keys: str) -> str:
    value = _at(record, *keys)
    if not isinstance(value, str):
        raise _DamagedError(f"{'.'.join(keys)} is no text")
    return value[:_MOST_NAME]


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
        raise _DamagedError("a figure is no number")
    if not math.isfinite(value):
        raise _DamagedError("a figure is not finite")
    return float(value)


def _interval(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise _DamagedError("result.ci95 is no interval")
    return _number(value[0]), _number(value[1])


def _interval_values(repeats: Any) -> int:
    """Return the values behind the interval, as ``measure.statistics.interval_values`` does."""
    if not isinstance(repeats, list):
        raise _DamagedError("timing.repeats is no list")
    if len(repeats) != 1:
        return len(repeats)
    begin = _number(_at(repeats[0], "warmup_steps"))
    end = begin + _number(_at(repeats[0], "timed_steps"))
    fences = _at(repeats[0], "fence_steps")
    if not isinstance(fences, list):
        raise _DamagedError("fence_steps is no list")
    return max(0, sum(begin <= _number(step) <= end for step in fences) - 1)


def _date(stamp: str) -> str:
    """Return ``20261101T120000Z`` as ``2026-11-01T12:00:00Z``; another text unchanged."""
    with suppress(ValueError):
        return datetime.strptime(stamp, STAMP).strftime("%Y-%m-%dT%H:%M:%SZ")
    return stamp


def _why_no_record(path: Path) -> str:
    """Return the reason that the run left in its log, or how the folder looks."""
    with suppress(OSError):
        if not stat.S_ISREG((path / RECORD).lstat().st_mode):
            return f"not read: {RECORD} is a link or no file"
    reasons = [*_reasons(path / _LOG)]
    return f"no result: {reasons[-1]}" if reasons else "no record: the run goes on, or was killed"


def _reasons(log: Path) -> Iterator[str]:
    with suppress(OSError):
        if not stat.S_ISREG(log.lstat().st_mode):
            return
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _END_BYTES))
            text = stream.read(_END_BYTES).decode(errors="replace")
        for found in _NOT_FINISHED.finditer(text):
            yield found[1][:_MOST]
