"""The constants of projections, and what one measured run of a machine says about them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from llmb.errors import UsageError
from llmb.projection.step_time import Constants

_KEPT = files("llmb.projection") / "constants.json"
#: Shares of products that any machine has.
_LEAST, _MOST = 0.05, 3.0
#: A run so many times beyond what they make is none of this hardware.
_BEYOND = 2.0


@dataclass(frozen=True)
class Receipt:
    """How well the constants do: errors of tokens/s in percent, by benchmarks/projection."""

    rows: int
    tables: tuple[str, ...]
    #: Mean absolute error of tables that were left out of the fit.
    expected_error_percent: float
    #: The same, after calibrating with one row of the table.
    after_one_row_percent: float
    #: Of one row's error, the share that the other rows of its table have in common with it.
    believed: float
    #: Names of the devices that the rows are of.
    devices: tuple[str, ...]
    worst_row: str
    worst_error_percent: float

    def belief(self, device: str) -> float:
        """Return how much of a run's error is its device's: all of it where no row is of it.

        Of devices with rows it is known how far off they are, and how far a single row is.
        """
        return self.believed if device in self.devices else 1.0


def constants() -> Constants:
    """Return the constants fitted on all published rows."""
    return Constants(**_kept()["constants"])


def receipt() -> Receipt:
    """Return how well they do."""
    kept = {name: value for name, value in _kept().items() if name != "constants"}
    return Receipt(**{**kept, **{name: tuple(kept[name]) for name in ("tables", "devices")}})


def _kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_KEPT.read_text(encoding="utf-8"))
    return found


def calibrated(
    prior: Constants,
    measured: float,
    projected: Callable[[Constants], float],
    believed: float,
) -> Constants:
    """Return ``prior`` with the share of products moved towards where the run is met.

    ``measured`` and what ``projected`` returns of constants are rates (tokens/s); ``believed`` is
    how much of the way, by ratio. Where no share quite meets the run, the nearest one counts.

    Raises:
        UsageError: no share comes near the run: it was on other hardware.
    """
    slowest, fastest = (projected(replace(prior, products=share)) for share in (_LEAST, _MOST))
    if not slowest / _BEYOND <= measured <= fastest * _BEYOND:
        raise UsageError(
            f"{measured:,.4g} tokens/s were measured, where this hardware makes {slowest:,.4g} to "
            f"{fastest:,.4g}, however well its products run: give the hardware the run was on"
        )
    low, high = _LEAST, _MOST
    for _ in range(60):
        share = math.sqrt(low * high)
        if projected(replace(prior, products=share)) < measured:
            low = share
        else:
            high = share
    met = math.sqrt(low * high)
    return replace(prior, products=prior.products * (met / prior.products) ** believed)
