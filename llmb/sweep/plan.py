"""A sweep's plan: the user's request, the software and device in use, and the resulting points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field

from llmb import __version__
from llmb.config import Frozen, OptionValue, RunRequest
from llmb.errors import UsageError
from llmb.records.canonical import as_json
from llmb.records.finding import RULES_VERSION
from llmb.reference import pins
from llmb.wire.messages import Offer

# Version history of the plan, one line per change; old versions load for ever.
# llmb.sweep/1  2026-11  first version.
SCHEMA: Literal["llmb.sweep/1"] = "llmb.sweep/1"

#: Largest batch size of doubling, in sequences, if memory never runs out before.
_MOST_SEQUENCES = 2**20


@dataclass(frozen=True)
class Point:
    """One run of a sweep. Batch size None: the run searches for the best batch size."""

    precision: str
    batch_size: int | None

    @property
    def folder(self) -> str:
        """Name of the folder for the point's run directories, such as ``BF16-batch-8``."""
        name = re.sub(r"[^A-Za-z0-9._-]", "_", self.precision)
        return f"{name}-batch-{'auto' if self.batch_size is None else self.batch_size}"

    def __str__(self) -> str:
        """Return the point as text for people, such as ``BF16, batch size 8``."""
        size = "found by search" if self.batch_size is None else self.batch_size
        return f"{self.precision}, batch size {size}"


class SweepRequest(Frozen):
    """The user's request for a sweep."""

    #: Settings shared by all points; without precision and batch size.
    request: RunRequest
    #: Empty: every format of the device's own hardware, none emulated.
    precisions: tuple[str, ...] = ()
    #: Sequences per step; "auto": each run searches; None: doubled until out of memory.
    batch_sizes: tuple[int, ...] | Literal["auto"] | None = None
    #: Largest batch size of doubling.
    max_batch_size: int | None = Field(default=None, ge=1)


class Ground(Frozen):
    """Software and device of a sweep: runs with other software or devices need a new sweep."""

    llmb_version: str
    rules_version: str
    reference_digest: str
    plugin: str
    distribution: str
    plugin_version: str
    #: Every option of the plugin, resolved.
    plugin_options: dict[str, OptionValue]
    device: str
    torch_version: str

    @classmethod
    def of(cls, offer: Offer) -> Ground:
        """Return the ground of the installed llmb with ``offer``."""
        return cls(
            llmb_version=__version__,
            rules_version=RULES_VERSION,
            reference_digest=pins.reference_digest(pins.actual_digests()),
            plugin=offer.plugin,
            distribution=offer.distribution,
            plugin_version=offer.version,
            plugin_options=dict(offer.options),
            device=offer.device,
            torch_version=offer.torch_version,
        )


class LeftOut(Frozen):
    """A format left out of the sweep, with the reason."""

    name: str
    reason: str
    #: Emulated by the device: slow, and run only if named by the user.
    emulated: bool = False


class SweepPlan(Frozen):
    """``sweep.json``: written before the first run, and never changed."""

    model_config = ConfigDict(populate_by_name=True)  # the rest is inherited from Frozen

    schema_: Literal["llmb.sweep/1"] = Field(alias="schema", default=SCHEMA)
    created_utc: str
    asked: SweepRequest
    ground: Ground
    #: In running order.
    precisions: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def doubles(self) -> bool:
        """Tell whether batch sizes are doubled until out of memory."""
        return self.asked.batch_sizes is None

    def points(self, precision: str) -> Iterator[Point]:
        """Yield the points of ``precision``: batch sizes as given, "auto", or doubled.

        Doubling begins with one sequence per micro-batch. Example: ``accumulate`` 2 and at most 16
        sequences give 2, 4, 8, 16.
        """
        sizes = self.asked.batch_sizes
        if sizes == "auto":
            yield Point(precision, None)
        elif sizes is not None:
            yield from (Point(precision, size) for size in sizes)
        else:
            size = self.asked.request.accumulate
            most = self.asked.max_batch_size or _MOST_SEQUENCES
            while size <= most:
                yield Point(precision, size)
                size *= 2

    def request(self, point: Point) -> RunRequest:
        """Return the run request of ``point``."""
        return self.asked.request.model_copy(
            update={
                "plugin": self.ground.plugin,
                "device": self.ground.device,
                "precision": point.precision,
                "batch_size": "auto" if point.batch_size is None else point.batch_size,
            }
        )


#: Field of ``SweepRequest`` or ``RunRequest`` -> command-line option with a different name.
_FLAGS = {"precisions": "--precision", "batch_sizes": "--batch-size", "plugin_options": "-O"}


def check_same(given: Frozen, planned: Frozen, place: str) -> None:
    """Refuse to resume a sweep with another plan, or on other software or another device.

    Raises:
        UsageError: a value differs; the message gives the first differing name and both values.
    """
    found = first_difference(as_json(given), as_json(planned))
    if found is None:
        return
    path, now, then = found
    name = path.removeprefix("request.").partition(".")[0]
    if isinstance(given, SweepRequest):
        name = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    raise UsageError(
        f"--resume {place}: {name} is {_said(now)}, and the sweep was begun with {_said(then)}: "
        "give --resume alone, or begin a new sweep"
    )


def _said(value: object) -> str:
    if value is None or value == []:
        return "not given"
    return ",".join(map(str, value)) if isinstance(value, list) else repr(value)


def first_difference(a: object, b: object, name: str = "") -> tuple[str, object, object] | None:
    """Return name, left and right value of the first difference of two JSON values, or None.

    Example: ``{"a": {"b": 1}}`` and ``{"a": {"b": 2}}`` give ``("a.b", 1, 2)``.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            found = first_difference(a.get(key), b.get(key), f"{name}.{key}".lstrip("."))
            if found is not None:
                return found
        return None
    return None if a == b else (name, a, b)
