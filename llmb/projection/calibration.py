"""The constants of projections, and what one measured run of a machine says about them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from llmb.projection.step_time import Constants

_KEPT = files("llmb.projection") / "constants.json"
#: Shares of products that any machine has.
_LEAST, _MOST = 0.05, 3.0
#: How far a share moves towards the one at which a run is met: what a machine attains and what the
#: model leaves out of a run are about equally uncertain, so half of a run's error is each one's.
_BELIEVED = 0.5


@dataclass(frozen=True)
class Receipt:
    """How well the constants do: errors of tokens/s in percent, by benchmarks/projection."""

    rows: int
    tables: tuple[str, ...]
    #: Mean absolute error of tables that were left out of the fit.
    expected_error_percent: float
    #: The same, after calibrating with one row of the table.
    after_one_row_percent: float
    worst_row: str
    worst_error_percent: float


def constants() -> Constants:
    """Return the constants fitted on all published rows."""
    return Constants(**_kept()["constants"])


def receipt() -> Receipt:
    """Return how well they do."""
    kept = {name: value for name, value in _kept().items() if name != "constants"}
    return Receipt(**{**kept, "tables": tuple(kept["tables"])})


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_KEPT.read_text(encoding="utf-8"))
    return found


def calibrated(
    prior: Constants, measured: float, projected: Callable[[Constants], float]
) -> Constants:
    """Return ``prior`` with the share of products moved half-way to where the run is met.

    ``measured`` and what ``projected`` returns of constants are rates (tokens/s); half-way is by
    ratio. Where no share meets the run, the nearest one counts.
    """
    low, high = _LEAST, _MOST
    for _ in range(60):
        share = math.sqrt(low * high)
        if projected(replace(prior, products=share)) < measured:
            low = share
        else:
            high = share
    met = math.sqrt(low * high)
    return replace(prior, products=prior.products * (met / prior.products) ** _BELIEVED)
