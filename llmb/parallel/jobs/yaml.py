"""A writer of YAML that quotes strings: no string can change the structure of a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

#: Strings without quotes, unless YAML reads the word as a boolean or null (``_WORDS``).
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


def yaml(value: object) -> str:
    """Return ``value``, of mappings, lists, strings and integers, as a YAML document.

    A list of strings takes one line, a list of mappings several. Quoted strings are JSON strings;
    YAML reads JSON strings as JSON does.
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            short = _short(each)
            if short is None:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _lines(each))
            else:
                yield f"{_scalar(key)}: {short}"
    else:
        assert isinstance(value, Sequence)
        for each in value:
            first, *others = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)


def _short(value: object) -> str | None:
    """Return ``value`` in one line, None if ``value`` takes several lines."""
    if isinstance(value, (str, int)):
        return _scalar(value)
    if isinstance(value, Mapping):
        return None if value else "{}"
    assert isinstance(value, Sequence)
    is_flat = all(isinstance(each, (str, int)) for each in value)
    return json.dumps(list(value), ensure_ascii=False) if is_flat else None


def _scalar(value: str | int) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
