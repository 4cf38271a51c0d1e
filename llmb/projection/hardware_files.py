"""Descriptions of a device, its node and its network: datasheet values with sources.

Shipped descriptions are the files in ``hardware/``, such as ``h100.json``. A user may write a JSON
file with the same fields.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError

from llmb.config import Frozen
from llmb.errors import UsageError, did_you_mean

_FOLDER = files("llmb.projection") / "hardware"
_MOST_BYTES = 2**20
#: Longest part of a wrong value in an error message, in characters.
_SHOWN = 60


class Hardware(Frozen):
    """One kind of device in a cluster.

    The bounds catch a number in another unit, such as TFLOP/s instead of FLOP/s.
    """

    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    #: Dense BF16 matrix products by the datasheet, in FLOP/s. Example: 989e12 (H100).
    peak_flops: float = Field(ge=1e9, le=1e18)
    #: Share of the peak in large matrix products. Example: 0.72 (H100).
    sustained_fraction: float = Field(gt=0, le=1)
    #: Share of the peak in the best fused attention kernel. Exponentials run on other units than
    #: products, and these units have grown less. Default: the value of ``h100``.
    attention_fraction: float = Field(default=0.35, gt=0, le=1)
    #: Memory of one device, in bytes and in bytes/s.
    memory_bytes: int = Field(ge=10**8, le=10**14)
    memory_bytes_per_second: float = Field(ge=1e8, le=1e15)
    #: Link within a node: one device, one direction, in bytes/s. None: unknown, and jobs with
    #: traffic on the link are refused.
    link_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    #: Speed of a message between two ranks of a node, in bytes/s; None: the speed of the link.
    message_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    #: Seconds of a tiny all-reduce within a node; None: the default of ``step_time``, 10e-6.
    latency_s: float | None = Field(default=None, gt=0, le=0.1)
    #: Network between nodes: one device, one direction, in bytes/s. Example: 50e9 (400 Gb/s).
    network_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    devices_per_node: int = Field(ge=1, le=1024)
    #: Rated power of one device in W; None: unknown.
    power_w: float | None = Field(default=None, ge=1, le=1e5)
    #: Sources of the values, such as a datasheet or a paper.
    source: str = Field(min_length=1)


def names() -> list[str]:
    """Return the names of the shipped descriptions."""
    return sorted(f.name.removesuffix(".json") for f in _FOLDER.iterdir() if f.name[-5:] == ".json")


def load(name: str) -> Hardware:
    """Return the shipped description ``name``, or the description in a file ``name``.

    Examples: ``h100``, ``my_cluster.json``.

    Raises:
        UsageError: the name is unknown, the file is unreadable, or a field is wrong.
    """
    if name in names():
        text = (_FOLDER / f"{name}.json").read_text(encoding="utf-8")
    elif name.endswith(".json"):
        text = _read(Path(name))
    else:
        raise UsageError(
            f"--hardware {name}: unknown; it is one of {', '.join(names())}, or a file NAME.json"
            f"{did_you_mean(name, names())}"
        )
    try:
        return Hardware.model_validate(json.loads(text))
    except ValidationError as error:
        raise UsageError(f"--hardware {name}: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--hardware {name}: not JSON ({error})") from None


def first_fault(error: ValidationError) -> str:
    """Return the first error in one line. Example: ``peak_flops is missing: add it``."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    if first["type"] == "missing":
        return f"{where} is missing: add it"
    if first["type"] == "extra_forbidden":
        return f"{where} is unknown; fields are {', '.join(Hardware.model_fields)}"
    given = repr(first["input"])
    shown = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}..."
    units = " (FLOP/s, bytes, bytes/s, s, W)" if "than" in first["msg"] else ""
    return f"{where} is {shown}: {first['msg']}{units}"


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise UsageError(f"--hardware {path}: more than 1 MiB: that is no description")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise UsageError(f"--hardware {path}: cannot be read: {reason}") from None
