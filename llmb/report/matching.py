"""Which row of a published table a run belongs to, and what keeps it from being another's."""

from __future__ import annotations

from collections.abc import Sequence

from llmb.report.runs import ReportedRun, Setting
from llmb.workloads import WORKLOADS
from llmb.workloads.published import Row, Table

#: What a row that does not say so was run with.
_USUAL: dict[str, Setting] = {"dynamic": False, "sac_freq": None}


def wanted(table: Table, row: Row) -> dict[str, Setting]:
    """Return every setting that a run of ``row`` has to have."""
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
    """Return the settings of ``run`` that are not those of ``row``; none where it is that row's."""
    needed = wanted(table, row)
    found = [name for name, value in needed.items() if run.settings.get(name) != value]
    if run.record.config.shape_overrides:
        found.append("sizes")
    formats = table.precisions
    if "precision" not in needed and formats and run.settings["precision"] not in formats:
        found.append("precision")
    return tuple(found)


def home(tables: Sequence[Table], run: ReportedRun) -> Table:
    """Return the one of ``tables`` that ``run`` stands in: of its workload, and least unlike it."""
    own = [table for table in tables if table.workload == run.record.config.workload]
    return min(own, key=lambda table: len(_fewest(table, run)))


def rows_of(table: Table, run: ReportedRun) -> tuple[int, ...]:
    """Return the numbers of the rows that ``run`` belongs to."""
    return tuple(n for n, row in enumerate(table.rows) if not differences(table, row, run))


def unlike(table: Table, run: ReportedRun) -> str:
    """Return in words what of ``run`` is in no row, by the row that it is least unlike."""
    names = _fewest(table, run)
    if not table.rows:
        names = ("executor", "precision")
        if run.record.config.shape_overrides:
            names += ("sizes",)
    return ", ".join(_words(name, run.settings.get(name)) for name in names)


def _fewest(table: Table, run: ReportedRun) -> tuple[str, ...]:
    """Return the differences from the row that ``run`` is least unlike."""
    every = [differences(table, row, run) for row in table.rows]
    return min(every, key=len, default=())


def _words(name: str, value: Setting) -> str:
    if name == "sizes":
        return "sizes of its own"
    if name == "world_size":
        return f"{value} device" + ("s" if value != 1 else "")
    if name == "sequences":
        return f"batch {value}"
    if name in ("mode", "new_tokens"):
        return f"{name.replace('_', ' ')} {value}"
    if isinstance(value, bool) or value is None:
        return ("" if value else "no ") + name.replace("_", " ")
    return str(value)
