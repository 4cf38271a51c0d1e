"""Evidence and the page under a sound manifest."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.attacks.kinds import (
    Files,
    forged,
)


def evidence(name: str, reason: str, file: str, content: bytes) -> None:
    """Add an attack on a file of evidence."""
    forged(name, reason, lambda files: {f"evidence/repeat-0/{file}": content})


def tensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file of ``header``, whatever it says."""
    size = len(header) if length is None else length
    return struct.pack("<Q", size) + header + data


EVERY = ("gradients", "honest", "reference", "steps", "replay")


def in_every_file(content: bytes) -> Files:
    """Return every file of numbers, with the files beside them that make them be read."""
    probed = {
        "seed": 1,
        "last_step": 51,
        "token_seed": 1,
        "passes": ["live", "branches"],
        "missing": [],
        "failure": None,
    }
    steps: dict[str, Any] = {"steps": [], "pause_ns": 0, "longest_pause_ns": 0}
    where = "evidence/repeat-0/"
    found = {f"{where}{file}.safetensors": content for file in EVERY}
    found |= {f"{where}probed.json": json.dumps(probed).encode()}
    return found | {f"{where}steps.json": json.dumps(steps).encode()}


def arrays(name: str, content: bytes) -> None:
    """Add an attack on every file of numbers."""
    forged(name, "audit: ", lambda files: in_every_file(content))


def header_of(begin: int, end: int, shape: list[int], dtype: str = "F32") -> bytes:
    """Return the header of a file with one array."""
    return json.dumps(
        {"a": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}
    ).encode()


arrays("numbers that are none", b"numbers")
arrays("header of 2^63 bytes", tensors(b"{}", length=2**63))
arrays("header of 2^64 - 1 bytes", tensors(b"{}", length=2**64 - 1))
arrays("array beyond the file", tensors(header_of(0, 2**40, [2**38])))
arrays("array that ends before it begins", tensors(header_of(8, 0, [2]), bytes(8)))
arrays("array of 2^126 elements", tensors(header_of(0, 4, [2**63, 2**63]), bytes(4)))
arrays("array of negative size", tensors(header_of(0, 4, [-1]), bytes(4)))
arrays("array of an unknown type", tensors(header_of(0, 4, [1], "F99"), bytes(4)))
arrays("no array where some must be", tensors(b"{}"))
arrays("deep header", tensors(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"))
evidence(
    "evidence with a key twice",
    "'before' twice",
    "model.json",
    b'{"before":{},"before":{},"after":{}}',
)
evidence("evidence of NaN", "NaN is not", "litmus.json", b'{"ones":NaN}')
evidence("evidence that is deep", "nested deeper", "optimizer.json", b"[" * 10_000)
evidence(
    "evidence that can be run", "not a file of a run", "weights.pkl", b"cos\nsystem\n(S'id'\ntR."
)
forged(
    "evidence of a repeat there was not",
    "not a file of a run",
    lambda files: {"evidence/repeat-7/model.json": b"{}"},
)
forged("page with a script", "README.md is not of a version", lambda f: {"README.md": b"<script>"})
forged(
    "page with another figure",
    "README.md does not say",
    lambda files: {"README.md": files["README.md"].replace(b"tokens/s", b"megatokens/s", 1)},
)
forged("page of the future", "update llmb", lambda f: {"README.md": b"<!-- llmb.page/99 -->\n"})
