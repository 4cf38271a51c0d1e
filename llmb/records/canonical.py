"""Canonical JSON (RFC 8785), for digests; and the readable form written to disk."""

from __future__ import annotations

import json
from typing import Any

import rfc8785

from llmb.config import Frozen


def as_json(value: Frozen) -> dict[str, Any]:
    """Return ``value`` as plain JSON data, under its public field names."""
    return value.model_dump(mode="json", by_alias=True)


def canonical_bytes(data: dict[str, Any]) -> bytes:
    """Return the unique canonical encoding of ``data``."""
    return rfc8785.dumps(data)


def pretty_bytes(value: Frozen) -> bytes:
    """Return ``value`` as indented JSON, for files that people open."""
    return (json.dumps(as_json(value), indent=1, ensure_ascii=False) + "\n").encode()
