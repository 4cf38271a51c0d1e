"""The leaderboard as one self-contained HTML file: no network, no server, no fonts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from llmb.report import ranking
from llmb.report.board import LEVELS, Board, BoardRow
from llmb.report.columns import (
    COLUMNS,
    RULES_BY_ID,
    VERDICTS,
    openness,
    reason_parts,
    row_data,
    row_id,
    submitter_of,
    system_of,
)
from llmb.report.comparing import comparing
from llmb.report.detail import detail
from llmb.report.precision_figure import precision_figures
from llmb.report.render import NOT_MEASURED, number, plain
from llmb.report.standing import TOPICS, reasons_apart, reasons_marked
from llmb.report.submitters import OUTCOMES, verdicts
from llmb.report.templates import policy, resource

_TEMPLATE, _STYLE = "leaderboard.html.jinja", "leaderboard.css"
_SCRIPTS = (
    "address.js",
    "table.js",
    "charts.js",
    "bundle.js",
    "compare.js",
    "download.js",
    "main.js",
)
#: Charts are open at first for at most three groups.
_OPEN_CHARTS = 3
#: Rows shown at first: at most 100 per group and about 400 in all groups together, but at least 25
#: per group. Further rows are in the page, and are drawn on demand.
_ROWS_AT_ONCE, _ROWS_OF_ALL, _LEAST_ROWS = 100, 400, 25
#: A text of at least 16 characters in two or more bundles is stored once in the page.
_SHORTEST_SHARED = 16
#: Prefix of the number of a shared text; ``detail`` never returns hidden characters.
_MARK = "\ue000"


def page(board: Board, commands: Mapping[str, str]) -> str:
    """Return ``board`` as one HTML page.

    The Content-Security-Policy allows one style and one script, by digest, and no loading. An
    untrusted text therefore cannot act as style or script, even without escaping.

    Args:
        board: the leaderboard.
        commands: bundle id -> command that repeats the run; a missing id shows no command.
    """
    style = resource(_STYLE)
    many = len(board.rows)
    details = {row_id(row): detail(row, commands.get(row.bundle_id), many) for row in board.rows}
    shared = _shared(details)
    at_once = min(_ROWS_AT_ONCE, max(_LEAST_ROWS, _ROWS_OF_ALL // max(1, len(board.groups))))
    script = "'use strict';\n" + "\n".join(map(resource, _SCRIPTS))
    environment = Environment(
        loader=FunctionLoader(resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(
        title=ranking.TITLE,
        about=ranking.ABOUT,
        references_about=ranking.REFERENCES,
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        columns=[column for column in COLUMNS if column.cell is not None],
        groups=[(group, [_view(row) for row in rows]) for group, rows in board.groups],
        open_charts=len(board.groups) <= _OPEN_CHARTS,
        multiples=precision_figures(board),
        apart=[_view(row) for row in board.apart],
        refused=_reasons(board, is_unread=False),
        unread=_reasons(board, is_unread=True),
        references=board.references,
        explained=_explained(board),
        outcomes=OUTCOMES,
        submitters=[(plain(one.submitter), one.counts) for one in verdicts(board)],
        comparing=comparing(board.rows),
        lines=_lines(board),
        filters=_filters(board),
        shared=list(shared),
        details={name: _shortened(data, shared) for name, data in details.items()},
        at_once=at_once,
        is_long=any(len(rows) > at_once for _, rows in board.groups),
        systems=len({(row.submitter, row.system) for row in board.rows}),
        not_measured=NOT_MEASURED,
    )


def _reasons(board: Board, *, is_unread: bool) -> list[tuple[str, str]]:
    every = (one for one in board.refused if one.is_unread is is_unread)
    return [(plain(one.path), plain(one.reason)) for one in every]


def _explained(board: Board) -> list[tuple[str, str, str, str]]:
    """Return anchor, title, text and source of each reason and rule that the page links to."""
    reasons = [
        reason
        for row in board.rows
        for reason in (*reasons_apart(row.entry.record), *reasons_marked(row.entry.record))
    ]
    topics = {reason.topic for reason in reasons}
    topics |= {"not-verified" if one.is_unread else "refused" for one in board.refused}
    named = {name for reason in reasons for name in reason.rules}
    told = [
        (f"why-{topic}", topic.replace("-", " "), text, f"docs/rules.md, {place}")
        for topic, (text, place) in TOPICS.items()
        if topic in topics
    ]
    for rule in RULES_BY_ID.values():
        if rule.id in named:
            text = f"{rule.title}. Measured: {rule.measured}. Cannot see: {rule.cannot_see}."
            place = f"level {rule.level.value}; docs/rules.md, What is observed"
            told.append((f"rule-{rule.id}", rule.id, text, place))
    return told


def _lines(board: Board) -> dict[str, Any]:
    """Return the data of downloads: per ranked row the CSV line and the JSON values."""
    rows = [row for _, ranked in board.groups for row in ranked]
    return {
        "schema": ranking.SCHEMA,
        "declared": ranking.declared(),
        "title": ranking.csv_title(),
        "fields": [name for column in COLUMNS for name in column.data],
        "rows": {row_id(row): [ranking.csv_line(row), *row_data(row).values()] for row in rows},
    }


def _texts(item: Any) -> Iterator[str]:
    if isinstance(item, str):
        if len(item) >= _SHORTEST_SHARED:
            yield item
    elif isinstance(item, (dict, list)):
        for part in item.values() if isinstance(item, dict) else item:
            yield from _texts(part)


def _shared(details: Mapping[str, Any]) -> dict[str, int]:
    """Return text -> number for texts of several bundles, in page order."""
    found = Counter(text for data in details.values() for text in set(_texts(data)))
    every = dict.fromkeys(text for data in details.values() for text in _texts(data))
    return {text: n for n, text in enumerate(text for text in every if found[text] > 1)}


def _shortened(item: Any, shared: Mapping[str, int]) -> Any:
    """Return ``item`` with each shared text replaced by its number."""
    if isinstance(item, str):
        return f"{_MARK}{shared[item]}" if item in shared else item
    if isinstance(item, dict):
        return {key: _shortened(part, shared) for key, part in item.items()}
    return [_shortened(part, shared) for part in item] if isinstance(item, list) else item


def _filters(board: Board) -> list[tuple[str, str, list[str]]]:
    """Return label, key and listed values of each filter. Example: ``("Mode", "mode", [...])``."""
    rows = [row for _, ranked in board.groups for row in ranked]
    verdicts = {row.verdict.value for row in rows}
    groups = [group for group, _ in board.groups]
    devices = sorted({row.devices for row in rows})
    return [
        ("Workload", "workload", _unique(group.workload for group in groups)),
        ("Mode", "mode", _unique(group.mode for group in groups)),
        ("Effective precision", "precision", _unique(group.precision for group in groups)),
        ("Lowest measured", "lowest", _formats(row.measured_lowest for row in rows)),
        ("Largest share", "largest", _formats(row.measured_largest for row in rows)),
        ("Plugin (vendor)", "plugin", sorted(_unique(row.plugin for row in rows))),
        ("Verdict", "verdict", [name for name in VERDICTS if name in verdicts]),
        ("Trust", "trust", [level for level in LEVELS if level in {row.trust for row in rows}]),
        ("Openness", "openness", sorted({openness(row) for row in rows}, reverse=True)),
        ("Devices", "devices", [str(count) for count in devices]),
    ]


def _formats(names: Iterable[str | None]) -> list[str]:
    """Return the measured formats by name, with "not measured" last if present."""
    every = {plain(name) if name else NOT_MEASURED for name in names}
    return sorted(every, key=lambda name: (name == NOT_MEASURED, name))


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(plain(name) for name in names))


def _view(row: BoardRow) -> dict[str, Any]:
    """Return the template's data of a row: texts without hidden characters, figures as text."""
    shown = [column for column in COLUMNS if column.cell is not None]
    return {
        "id": row_id(row),
        "facts": _facts(row) | {one.key: one.order(row) for one in shown if one.order},
        "cells": [(one, one.cell(row)) for one in shown if one.cell],
        "group": plain(row.group.title),
        "workload": plain(row.group.workload),
        "mode": plain(row.group.mode),
        "precision": plain(row.group.precision),
        "system": system_of(row),
        "submitter": submitter_of(row),
        "device": plain(row.device),
        "devices": row.devices,
        "tps_text": number(row.tokens_per_second),
        "reasons": [reason_parts(reason) for reason in reasons_apart(row.entry.record)],
        "verdict": row.verdict.value,
    }


def _facts(row: BoardRow) -> dict[str, float | str | None]:
    """Return a row's values for filters and charts, in addition to the sort keys."""
    low, high = row.ci95 or (None, None)
    share = row.fraction_of_ceiling
    return {
        "submitter": submitter_of(row),
        "devices": row.devices,
        "plugin": plain(row.plugin),
        "lowest": plain(row.measured_lowest or NOT_MEASURED),
        "largest": plain(row.measured_largest or NOT_MEASURED),
        "name": row.verdict.value,
        "openness": openness(row),
        "trust": row.trust,
        "low": low,
        "high": high,
        "peak": row.tokens_per_second / share if share else None,
    }
