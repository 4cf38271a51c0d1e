"""Match runs to rows of published tables, and list the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence

from llmb.submission.runs import ReportedRun, Setting
from llmb.workloads import WORKLOADS
from llmb.workloads.published import Row, Table

#: Settings of rows without a value of their own.
_USUAL: dict[str, Setting] = {"dynamic": False, "sac_freq": None}


def wanted(table: Table, row: Row) -> dict[str, Setting]:
    """Return the required settings of a run of ``row``. Example: ``{"world_size": 8, ...}``."""
    workload = WORKLOADS[table.workload]
    common: dict[str, Setting] = {
        "mode": workload.modes[0].value,
        "mixed_precision": workload.recipe.mixed_precision,
        "world_size": table.world_size,
        "sequences": table.sequences,
        "new_tokens": table.new_tokens,
    }
    named = {name: value for name, value in common.items() if value is not None}
    return {**_USUAL, **named, **row.settings}


def differences(table: Table, row: Row, run: ReportedRun) -> tuple[str, ...]:
    """Return the settings of ``run`` that differ from ``row``; empty: ``run`` is of ``row``."""
    needed = wanted(table, row)
    found = [name for name, value in needed.items() if run.settings.get(name) != value]
    if run.record.config.shape_overrides:
        found.append("sizes")
    formats = table.precisions
    if "precision" not in needed and formats and run.settings["precision"] not in formats:
        found.append("precision")
    return tuple(found)


def home(tables: Sequence[Table], run: ReportedRun) -> Table:
    """Return the table of ``run``: of the same workload, with the fewest differences in a row."""
    own = [table for table in tables if table.workload == run.record.config.workload]
    return min(own, key=lambda table: len(_fewest(table, run)))


def rows_of(table: Table, run: ReportedRun) -> tuple[int, ...]:
    """Return the numbers of the rows of ``run``, counted from 0."""
    return tuple(n for n, row in enumerate(table.rows) if not differences(table, row, run))


def unlike(table: Table, run: ReportedRun) -> str:
    """Return the differences from the nearest row in words. Example: ``2 devices, batch 16``."""
    names = _fewest(table, run)
    if not table.rows:
        names = ("executor", "precision")
        if run.record.config.shape_overrides:
            names += ("sizes",)
    return ", ".join(_words(name, run.settings.get(name)) for name in names)


def _fewest(table: Table, run: ReportedRun) -> tuple[str, ...]:
    """Return the differences from the nearest row."""
    every = [differences(table, row, run) for row in table.rows]
    return min(every, key=len, default=())


def _words(name: str, value: Setting) -> str:
    if name == "sizes":
        return "sizes of its own"
    if name == "world_size":
        return f"{value} device" + ("s" if value != 1 else "")
    if name == "sequences":
        return f"batch {value}"
    if name == "zero" and value is not None:
        return f"ZeRO {value}"
    if name in ("mode", "new_tokens"):
        return f"{name.replace('_', ' ')} {value}"
    if isinstance(value, bool) or value is None:
        return ("" if value else "no ") + name.replace("_", " ")
    return str(value)
