"""What a projection knows of a device, its node and its network: datasheet values with sources.

Shipped descriptions are the files in ``hardware/``; a user's own is a JSON file of the same fields.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from pydantic import Field, ValidationError

from llmb.config import Frozen
from llmb.errors import UsageError

_FOLDER = files("llmb.projection") / "hardware"
_MOST_BYTES = 2**20
#: Characters of a wrong value that are repeated.
_SHOWN = 60


class Hardware(Frozen):
    """One kind of device in a cluster; the bounds catch a number in another unit."""

    name: str = Field(min_length=1, max_length=64)
    description: str = ""
    #: Dense BF16 products, FLOP/s, by the datasheet.
    peak_flops: float = Field(ge=1e9, le=1e18)
    #: Share of the peak that large matrix products attain.
    sustained_fraction: float = Field(gt=0, le=1)
    #: Share of the peak that a fused attention kernel attains at best. Its exponentials take other
    #: units than its products, which have grown less. Where nobody says, as on ``h100``.
    attention_fraction: float = Field(default=0.35, gt=0, le=1)
    #: Of one device.
    memory_bytes: int = Field(ge=10**8, le=10**14)
    memory_bytes_per_second: float = Field(ge=1e8, le=1e15)
    #: Within a node, of one device, one way. What is None is not known: a job that needs it is
    #: refused.
    link_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    #: The same of a message from one rank to another; None: the link's.
    message_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    #: Seconds of an all-reduce of next to nothing within a node; None: the model's own.
    latency_s: float | None = Field(default=None, gt=0, le=0.1)
    #: Between nodes, of one device, one way.
    network_bytes_per_second: float | None = Field(default=None, ge=1e6, le=1e14)
    devices_per_node: int = Field(ge=1, le=1024)
    #: Of one device; None where it is not known.
    power_w: float | None = Field(default=None, ge=1, le=1e5)
    #: Where the values are from.
    source: str = Field(min_length=1)


def names() -> list[str]:
    """Return the names of the shipped descriptions."""
    return sorted(f.name.removesuffix(".json") for f in _FOLDER.iterdir() if f.name[-5:] == ".json")


def load(name: str) -> Hardware:
    """Return the shipped description of that name, or the one in the file of that path.

    Raises:
        UsageError: there is none, or it is not one.
    """
    if name in names():
        text = (_FOLDER / f"{name}.json").read_text(encoding="utf-8")
    elif name.endswith(".json"):
        text = _read(Path(name))
    else:
        raise UsageError(
            f"--hardware {name}: unknown; it is one of {', '.join(names())}, or a file NAME.json"
        )
    try:
        return Hardware.model_validate(json.loads(text))
    except ValidationError as error:
        raise UsageError(f"--hardware {name}: {first_fault(error)}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--hardware {name}: not JSON ({error})") from None


def first_fault(error: ValidationError) -> str:
    """Return in one line what is wrong with a description, and what to do."""
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
