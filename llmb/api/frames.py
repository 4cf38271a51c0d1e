"""Tables for pandas, an optional package, and text in tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmb.errors import UnavailableError
from llmb.records.printable import printable

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(rows: Sequence[Mapping[str, object]]) -> DataFrame:
    """Return ``rows`` as a table with a column for each key; text is made printable.

    Raises:
        UnavailableError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UnavailableError(
            "to_pandas() needs pandas, which is not installed: pip install 'llmb[pandas]'"
        ) from None
    return pandas.DataFrame([{name: _cell(value) for name, value in row.items()} for row in rows])


def _cell(value: object) -> object:
    return printable(value) if isinstance(value, str) else value
