"""Messages of the process ``ceilings``: ceilings of a run, and rates for an estimate."""

from __future__ import annotations

from typing import Literal

from llmb.config import Frozen, RunConfig
from llmb.records.ceiling import Ceiling
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
