"""A report as Markdown, CSV or JSON data; untrusted texts of records are escaped."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llmb.report.document import Line, Report, Section
from llmb.submission.runs import ReportedRun

NOT_MEASURED = "not measured"
MEASURED = "measured"
MEASURED_ON = "measured on"
#: Active characters in a table cell of GitHub's Markdown, such as ``|`` and ``www.``.
_ACTS = re.compile(r"([\\`*_{}\[\]<>|~#&!$@])|(?<=:)(//)|(?i:(?<=www)(\.))")
#: Beginning of a formula in a spreadsheet, such as ``=`` or ``+``; some spreadsheets also accept
#: the wide forms of East Asian text. A cell begins at the start of a field; in countries with a
#: decimal comma, also after a semicolon. Spreadsheets skip leading blanks.
_COMPUTED = re.compile("(^|;)( *[=+\\-@\uff1d\uff0b\uff0d\uff20])")
_LONGEST = 400
_CSV = ("document", "table", "workload", "row", "column", "published", "published_on", "measured")
_CSV_RUN = ("measured_on", "precision", "class", "verdict", "runs", "run_id")


def heading(report: Report) -> str:
    """Return source and hardware of the document in one line."""
    document = report.document
    return f"Published in {document.source}. Hardware: {document.hardware}."


def titles(section: Section) -> tuple[str, ...]:
    """Return the column titles: labels, then published and measured in pairs, then the run."""
    pairs = (title for column in section.columns for title in (column.title, MEASURED))
    return (*section.labels, *pairs, MEASURED_ON)


def cells(line: Line) -> tuple[str, ...]:
    """Return the cells of a row as plain text."""
    figures: list[str] = []
    for published, measured in zip(line.published, line.measured, strict=True):
        figures.append("" if published is None else f"{published:,g}")
        figures.append(NOT_MEASURED if measured is None else number(measured))
    return (*line.labels, *figures, where(line))


def where(line: Line) -> str:
    """Return hardware and settings of the measured run of ``line``, and the number of runs."""
    if line.run is None:
        return ""
    run, config = line.run, line.run.record.config
    size = run.settings["world_size"]
    parts = [
        f"{run.record.hardware} ({config.plugin})",
        f"{size} device" + ("s" if size != 1 else ""),
        f"{run.settings['precision']}" + (" mixed" if config.mixed_precision else ""),
        f"batch {config.batch_size}",
        run.record.audit.verdict.value,
    ]
    if line.count > 1:
        parts.append(f"best of {line.count} runs")
    if run.is_debug:
        parts.insert(0, "DEBUG, not comparable")
    return ", ".join(parts)


def number(value: float) -> str:
    """Return a figure with four digits; from 1,000 on as a whole number. Example: ``12,345``."""
    if abs(value) >= 1e9:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def markdown(report: Report) -> str:
    """Return every table in GitHub's Markdown."""
    lines = [f"# {escaped(report.document.name)}", "", escaped(heading(report))]
    for section in report.sections:
        lines += ["", f"## {escaped(section.title)}", ""]
        lines.append(_row(titles(section)))
        lines.append(_row("---" for _ in titles(section)))
        lines += [_row(map(escaped, cells(line))) for line in section.lines]
        lines += [f"\n{escaped(note)}" for note in section.notes]
    lines += [f"\n{escaped(note)}" for note in report.notes]
    return "\n".join(lines) + "\n"


def _row(texts: Iterable[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def escaped(text: str) -> str:
    """Return ``text`` without active parts: no markup, link, line break or hidden character."""
    return _ACTS.sub(lambda match: "\\" + match.group(0), plain(text))


def plain(text: str) -> str:
    """Return ``text`` cut to 400 characters, with hidden characters escaped after the cut."""
    return visible(text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "...")


def visible(text: str) -> str:
    """Return ``text`` with every hidden character (control, bidi, line break) escaped."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def comma_separated(reports: Sequence[tuple[str, Report]]) -> str:
    """Return CSV: a header, then one line per figure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow((*_CSV, *_CSV_RUN))
    for name, report in reports:
        for section in report.sections:
            for line in section.lines:
                for values in _csv_lines(name, report, section, line):
                    writer.writerow([inert(value) for value in values])
    return stream.getvalue()


def _csv_lines(
    name: str, report: Report, section: Section, line: Line
) -> Iterator[tuple[object, ...]]:
    row = " ".join(filter(None, line.labels))
    about = _about(line.run, line.count)
    pairs = zip(section.columns, line.published, line.measured, strict=True)
    for column, published, measured in pairs:
        yield (
            name,
            section.title,
            section.workload,
            row,
            column.key,
            published,
            report.document.hardware if published is not None else None,
            measured,
            *(about.get(key) for key in _CSV_RUN),
        )


def inert(value: object) -> object:
    """Return a cell without a formula. Example: ``'=1+1`` for ``=1+1``."""
    if not isinstance(value, str):
        return value
    return _COMPUTED.sub(r"\1'\2", plain(value))


def as_data(name: str, report: Report) -> dict[str, Any]:
    """Return the report as JSON data; null: not measured or not published."""
    document = report.document
    return {
        "document": name,
        "name": document.name,
        "source": document.source,
        "published_on": document.hardware,
        "tables": [_table_data(section) for section in report.sections],
        "notes": list(report.notes),
    }


def _table_data(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "workload": section.workload,
        "columns": [column.model_dump() for column in section.columns],
        "rows": [
            {
                "labels": dict(zip(section.labels, line.labels, strict=True)),
                "published": _by_key(section, line.published),
                "measured": _by_key(section, line.measured),
                **_about(line.run, line.count),
            }
            for line in section.lines
        ],
        "notes": list(section.notes),
    }


def _by_key(section: Section, values: Sequence[float | None]) -> dict[str, float | None]:
    keys = (column.key for column in section.columns)
    return dict(zip(keys, values, strict=True))


def _about(run: ReportedRun | None, count: int) -> dict[str, Any]:
    """Return hardware, settings, verdict and run id of the measured run."""
    if run is None:
        return {"measured_on": None, "runs": count}
    return {
        "measured_on": run.record.hardware,
        "plugin": run.record.config.plugin,
        "world_size": run.settings["world_size"],
        "precision": run.settings["precision"],
        "batch_size": run.record.config.batch_size,
        "class": run.record.class_,
        "verdict": run.record.audit.verdict.value,
        "runs": count,
        "run_id": run.record.run_id,
    }
