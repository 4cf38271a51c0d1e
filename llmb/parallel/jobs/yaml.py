"""Writes values as YAML in which no text can be anything but a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

#: What needs no quotes. Words that YAML takes for a truth value or for nothing are left out below.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}


def yaml(value: object) -> str:
    """Return ``value``, made of mappings, lists, texts and whole numbers, as a YAML document.

    Lists of texts stand on one line. Texts are JSON strings, which YAML reads as JSON does.
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            if _is_short(each):
                yield f"{_scalar(key)}: {_short(each)}"
            else:
                yield f"{_scalar(key)}:"
                yield from (f"  {line}" for line in _lines(each))
    else:
        assert isinstance(value, Sequence)
        for each in value:
            first, *others = [_short(each)] if _is_short(each) else _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in others)


def _is_short(value: object) -> bool:
    if isinstance(value, (str, int)):
        return True
    is_list = isinstance(value, Sequence)
    return not value or (is_list and all(isinstance(each, (str, int)) for each in value))


def _short(value: object) -> str:
    if isinstance(value, (str, int)):
        return _scalar(value)
    if isinstance(value, Mapping):
        return "{}"
    assert isinstance(value, Sequence)
    return json.dumps(list(value), ensure_ascii=False)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)
