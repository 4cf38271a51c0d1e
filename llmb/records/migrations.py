"""Older versions of llmb's documents, converted to the present version.

To change a schema: raise the schema's constant, write a function from the old form to the new form,
and add the function to ``STEPS``. Steps are never removed: a readable version stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from llmb.errors import BundleRefusedError

Data = dict[str, Any]
#: Takes a document in the form of one version, returns it in the form of the next.
Step = Callable[[Data], Data]


def _availability(index: Data) -> Data:
    """Return an index of version 1 as version 2, with the availability of the system."""
    return {**index, "availability": None}


#: Schema of a document -> function that makes the next version.
STEPS: dict[str, Step] = {"llmb.system-index/1": _availability}


def to_current(data: Any, current: str, name: str, what: str) -> Data:
    """Return JSON ``data`` in the form of schema ``current``, converted from any older version.

    Args:
        data: a document as read; not modified.
        current: the schema this llmb writes, "<family>/<version>".
        name: the file, for messages.
        what: the kind of document, for messages, with its article.

    Raises:
        BundleRefusedError: another kind of document, a future version, a version older than all
            steps, or a document that does not fit the stated version.
    """
    family, _, newest = current.rpartition("/")
    version = _version(data, family)
    if version is None:
        raise BundleRefusedError(f"{name!r} is not {what}: its schema is not {current}")
    if version > int(newest):
        schema = f"{family}/{version}"
        raise BundleRefusedError(
            f"{name!r} is of schema {schema}, made by a newer llmb: update llmb to read it"
        )
    document: Data = data if version == int(newest) else deepcopy(data)
    for older in range(version, int(newest)):
        step = STEPS.get(f"{family}/{older}")
        if step is None:
            raise BundleRefusedError(f"{name!r} is of schema {family}/{older}, which nobody reads")
        try:
            document = {**step(document), "schema": f"{family}/{older + 1}"}
        except (LookupError, TypeError, ValueError, AttributeError):
            raise BundleRefusedError(
                f"{name!r} says it is of schema {family}/{older} and is not in that form"
            ) from None
    return document


def _version(data: Any, family: str) -> int | None:
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, str):
        return None
    match = re.fullmatch(re.escape(family) + r"/(0|[1-9][0-9]{0,8})", schema, re.ASCII)
    return int(match.group(1)) if match else None
