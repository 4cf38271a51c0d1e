"""Figures published by the source documents, measured on the documents' hardware: never a target.

The tables copy the documents' tables column by column, and every document names its source.
Example: the five rows of the nanotron table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from pydantic import Field

from llmb.config import Frozen


class Column(Frozen):
    """A column of figures: the title in the document, and the key in llmb."""

    title: str
    key: str


class Row(Frozen):
    """A row of a table: the document's labels, the settings of the run, and the figures."""

    labels: tuple[str, ...]
    settings: Mapping[str, str | int | bool]
    values: Mapping[str, float]


class Table(Frozen):
    """A table of a document; all rows are about the same workload."""

    title: str
    workload: str
    #: Titles of the label columns, which identify a row.
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str | None = None
    #: Number of devices of every row; None if the document gives no common number.
    world_size: int | None = Field(default=None, ge=1)
    #: Sequences of a step on all devices, if the figures are times of a step.
    sequences: int | None = Field(default=None, ge=1)
    #: Tokens generated for each sequence; None without generation.
    new_tokens: int | None = Field(default=None, ge=1)
    #: Formats comparable with a row without a format; empty if every format is comparable.
    precisions: tuple[str, ...] = ()


class Document(Frozen):
    """A source document: name, source, hardware of the measurements, and tables."""

    name: str
    source: str
    hardware: str
    tables: tuple[Table, ...]


@cache
def documents() -> Mapping[str, Document]:
    """Return every source document by its short name."""
    text = files("llmb.workloads").joinpath("published.json").read_text(encoding="utf-8")
    return {name: Document.model_validate(one) for name, one in json.loads(text).items()}


def tables_of(workload: str) -> Iterator[tuple[Document, Table]]:
    """Yield every published table about ``workload`` with its document."""
    for document in documents().values():
        for table in document.tables:
            if table.workload == workload:
                yield document, table
