"""JSON from strangers: unambiguous and bounded in size, depth and digits, or refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from llmb.errors import BundleRefusedError

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 20
#: A value takes up to 250 bytes when parsed, a wrong value a kilobyte; 10,000 ranks have 150,000.
MAX_VALUES = 250_000


def loads(raw: bytes, name: str) -> Any:
    """Return the JSON value in ``raw``; ``name`` is the name of the file in messages.

    Raises:
        BundleRefusedError: not UTF-8, not JSON, too large or deep, too many values, a key twice, a
            number that is not finite or has more than 20 digits, half of a surrogate pair.
    """
    if len(raw) > MAX_BYTES:
        raise BundleRefusedError(f"{name!r} has {len(raw)} bytes of JSON, more than {MAX_BYTES}")
    try:
        text = raw.decode("utf-8")
        _check_shape(text)
        data = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
        # A lone surrogate parses, but no UTF-8 file can hold a surrogate: every writer would fail.
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise BundleRefusedError(f"{name!r} is not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise BundleRefusedError(f"{name!r} holds half of a surrogate pair") from None
    except ValueError as error:
        raise BundleRefusedError(f"{name!r} is not strict JSON: {error}") from None
    return data


def same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal, without Python's ``True == 1``."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _check_shape(text: str) -> None:
    # Before parsing, because a deep text can exhaust the parser's stack, and a text of brackets
    # alone the memory. Escapes are removed first, so the rest of a string ends at the first quote.
    bare = re.sub(r'"[^"]*"?', "", text.replace("\\\\", "").replace('\\"', ""))
    if sum(map(bare.count, ",[{")) > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values")
    depth = 0
    for bracket in re.finditer(r"[][{}]", bare):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} twice in one object")
        result[key] = value
    return result


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of more than {MAX_INTEGER_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits[:24]} is too large")
    return value


def _constant(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")
