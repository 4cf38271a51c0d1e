"""A source document's tables: published figures beside figures measured with llmb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmb.projection.rounding import contradictions
from llmb.records.finding import Verdict
from llmb.report import matching
from llmb.submission.runs import ReportedRun
from llmb.workloads import WORKLOADS
from llmb.workloads.published import Column, Document, Row, Table


@dataclass(frozen=True)
class Line:
    """A row: labels, published and measured figures per column, and the measured run."""

    labels: tuple[str, ...]
    published: tuple[float | None, ...]
    measured: tuple[float | None, ...]
    #: The fastest run of the row; None: no run.
    run: ReportedRun | None
    count: int


@dataclass(frozen=True)
class Section:
    """One table of the document."""

    title: str
    workload: str
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Every table of a document."""

    document: Document
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def report(name: str, document: Document, runs: Sequence[ReportedRun], *, debug: bool) -> Report:
    """Return the tables of ``document``, whose short name is ``name``.

    Debug runs are included only with ``debug``. INVALID runs are never included.
    """
    own = [run for run in runs if run.record.config.definition is None]
    own = [run for run in own if _is_of(name, run)]
    valid = [run for run in own if run.record.audit.verdict is not Verdict.INVALID]
    shown = [run for run in valid if debug or not run.is_debug]
    tables = (*document.tables, *_unpublished(document, shown))
    homes = [matching.home(tables, run) for run in shown]
    sections = [
        _section(table, [run for run, home in zip(shown, homes, strict=True) if home is table])
        for table in tables
    ]
    return Report(document, tuple(sections), tuple(_left_out(own, valid, shown)))


def _is_of(name: str, run: ReportedRun) -> bool:
    workload = WORKLOADS.get(run.record.config.workload)
    return workload is not None and workload.document == name


def _left_out(
    own: Sequence[ReportedRun], valid: Sequence[ReportedRun], shown: Sequence[ReportedRun]
) -> Iterator[str]:
    if len(own) > len(valid):
        yield f"{_runs(len(own) - len(valid))} left out: the audit is INVALID"
    if len(valid) > len(shown):
        yield f"{_runs(len(valid) - len(shown))} left out: debug, --debug shows them"


def _runs(count: int) -> str:
    return f"{count} run" + ("s" if count != 1 else "")


def _section(table: Table, runs: Sequence[ReportedRun]) -> Section:
    places = [(run, matching.rows_of(table, run)) for run in runs]
    lines = [
        _line(table, row.labels, row, [run for run, rows in places if n in rows])
        for n, row in enumerate(table.rows)
    ]
    others: dict[str, list[ReportedRun]] = {}
    for run, rows in places:
        if not rows:
            others.setdefault(matching.unlike(table, run), []).append(run)
    lines += [_line(table, _padded(table, words), None, group) for words, group in others.items()]
    notes = (*((table.note,) if table.note else ()), *_contradictions(table))
    return Section(table.title, table.workload, table.labels, table.columns, tuple(lines), notes)


def _unpublished(document: Document, runs: Sequence[ReportedRun]) -> Iterator[Table]:
    """Yield a table per measured workload of the document without a published table."""
    known = {table.workload for table in document.tables}
    model = document.tables[0]
    for workload in sorted({run.record.config.workload for run in runs} - known):
        yield Table(
            title=workload,
            workload=workload,
            labels=("Run",),
            columns=model.columns,
            rows=(),
            note="the document publishes no figure of it",
        )


def _padded(table: Table, words: str) -> tuple[str, ...]:
    """Return the labels of a row without a published counterpart: the differing settings."""
    return (words, *[""] * (len(table.labels) - 1))


def _line(
    table: Table, labels: tuple[str, ...], row: Row | None, runs: Sequence[ReportedRun]
) -> Line:
    best = max(runs, key=_rank, default=None)
    keys = [column.key for column in table.columns]
    return Line(
        labels=labels,
        published=tuple(row.values.get(key) if row else None for key in keys),
        measured=tuple(best.values.get(key) if best else None for key in keys),
        run=best,
        count=len(runs),
    )


def _rank(run: ReportedRun) -> tuple[bool, float]:
    """Return a sort key, larger is better: official before debug, then tokens/s."""
    return not run.is_debug, run.values["tokens_per_second"]


def _contradictions(table: Table) -> Iterator[str]:
    shape = WORKLOADS[table.workload].shape
    for row in table.rows:
        for words in contradictions(row, table, shape.sequence_length):
            yield f"published, {' '.join(row.labels)}: {words}"
