"""Messages of the measuring processes ``ceilings`` and ``collectives``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmb.config import Frozen, RankAddress, RunConfig
from llmb.records.ceiling import Ceiling
from llmb.records.interconnect import CollectiveKind, CollectiveRate, HostLinks
from llmb.records.run_record import Rates


class CalibrationOrder(Frozen):
    """Ask for the ceilings of ``config``'s device, spending about ``seconds``."""

    kind: Literal["calibrate"] = "calibrate"
    config: RunConfig
    seconds: float


class Calibration(Frozen):
    """The measured ceilings."""

    kind: Literal["calibration"] = "calibration"
    ceiling: Ceiling


class RatesOrder(Frozen):
    """Ask for the processor's rates at the matrix products of ``config``, in each of ``dtypes``."""

    kind: Literal["measure rates"] = "measure rates"
    config: RunConfig
    #: torch's names, such as "bfloat16".
    dtypes: tuple[str, ...]


class MeasuredRates(Frozen):
    """The measured rates."""

    kind: Literal["rates"] = "rates"
    rates: Rates


class CollectivesOrder(Frozen):
    """Ask a rank for its part in timing collectives between all ranks."""

    kind: Literal["time collectives"] = "time collectives"
    config: RunConfig
    place: RankAddress
    #: Prefix of the ranks' keys in the store, unlike the number of any repeat.
    repeat: int
    #: Seconds to wait for a message from a rank.
    rank_timeout_s: float = Field(gt=0)
    kinds: tuple[CollectiveKind, ...]
    #: False: a processor with gloo, which needs no plugin.
    with_plugin: bool
    #: Digest of the host's name, which tells hosts apart, and the links of the host; None on all
    #: ranks of a host but the first.
    host: str
    links: HostLinks | None = None


class Collected(Frozen):
    """The rates of collectives between all ranks, and the hosts with their ranks."""

    kind: Literal["collected"] = "collected"
    #: The library of the model's process group. Example: ``gloo``.
    library: str
    rates: tuple[CollectiveRate, ...]
    hosts: tuple[HostLinks, ...]
    #: The error that ended the measurement; empty for a complete measurement.
    trouble: str = Field(default="", max_length=2000)
