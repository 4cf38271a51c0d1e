"""Flat rows as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from llmb.errors import UnavailableError
from llmb.report.exports.rows import FlatRow, Value, filled
from llmb.report.render import inert

SCHEMA = "llmb.export/1"


def as_csv(rows: Sequence[FlatRow]) -> str:
    """Return ``rows`` as CSV with a header; empty: not measured; no cell is a formula."""
    full = filled(rows)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(full[0] if full else ())
    for row in full:
        writer.writerow([_cell(value) for value in row.values()])
    return stream.getvalue()


def _cell(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else inert(value)


def as_json(rows: Sequence[FlatRow]) -> str:
    """Return ``rows`` as one JSON object of ``SCHEMA``; null: not measured."""
    return json.dumps({"schema": SCHEMA, "rows": filled(rows)}, indent=1, allow_nan=False) + "\n"


def as_parquet(rows: Sequence[FlatRow]) -> bytes:
    """Return ``rows`` as a Parquet file with one type per column; null: not measured.

    Raises:
        UnavailableError: pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError(
            "Parquet needs pyarrow, which is not installed: pip install 'llmb[parquet]'"
        ) from None
    full = filled(rows)
    names = list(full[0]) if full else []
    table = pyarrow.table({name: _uniform([row[name] for row in full]) for name in names})
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _uniform(values: list[Value]) -> list[Value]:
    """Return ``values`` as one Parquet type: numbers stay numbers, mixed types become text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1 and not kinds <= {int, float}:
        return [None if value is None else str(value) for value in values]
    large = any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
    if kinds == {int, float} or (kinds == {int} and large):
        return [None if value is None else float(value) for value in values]
    return values
