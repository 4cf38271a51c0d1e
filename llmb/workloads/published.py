"""What the source documents publish of their workloads: other people's hardware, never a yardstick.

The tables are the documents' own, column by column; each says where it is from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files

from pydantic import Field

from llmb.config import Frozen


class Column(Frozen):
    """A column of figures: its title in the document and what it is called here."""

    title: str
    key: str


class Row(Frozen):
    """A row: the document's labels, the settings it was run with, and its figures."""

    labels: tuple[str, ...]
    settings: Mapping[str, str | int | bool]
    values: Mapping[str, float]


class Table(Frozen):
    """One table of a document, all of it about one workload."""

    title: str
    workload: str
    #: Titles of the columns that say which row it is.
    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str | None = None
    #: Devices every row ran on, where the document says so for all of them.
    world_size: int | None = Field(default=None, ge=1)
    #: Sequences of a step on all devices, where the figures are times of so many.
    sequences: int | None = Field(default=None, ge=1)
    #: Tokens generated for each sequence, where any are.
    new_tokens: int | None = Field(default=None, ge=1)
    #: Formats that a row without one of its own may be compared with; empty for any.
    precisions: tuple[str, ...] = ()


class Document(Frozen):
    """A source document: what it publishes, where it is from, on what hardware it was measured."""

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
