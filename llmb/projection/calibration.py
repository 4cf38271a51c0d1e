"""The fitted constants of projections, and their calibration by one measured run."""

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
#: Bounds of ``Constants.products`` in a calibration.
_LEAST, _MOST = 0.05, 3.0
#: A run is refused as "other hardware" if its rate is more than 2 times outside the rates at both
#: bounds. Example: bounds give 1,000 to 9,000 tokens/s, and 20,000 tokens/s were measured.
_BEYOND = 2.0


@dataclass(frozen=True)
class Receipt:
    """Errors of the fitted constants: tokens/s in percent, from benchmarks/projection."""

    rows: int
    tables: tuple[str, ...]
    #: Mean absolute error of tables outside the fit. Example: 6.1.
    expected_error_percent: float
    #: Mean absolute error after a calibration with one row of the table.
    after_one_row_percent: float
    #: Share of one row's error that all rows of the table have in common. Example: 0.27.
    believed: float
    #: Names of the devices in the rows, such as ``h100``.
    devices: tuple[str, ...]
    worst_row: str
    worst_error_percent: float

    def belief(self, device: str) -> float:
        """Return the share of a run's error that is due to the device; 1.0 for an unknown device.

        For devices with published rows, the fit gives the share (``believed``).
        """
        return self.believed if device in self.devices else 1.0


def constants() -> Constants:
    """Return the constants fitted on all published rows."""
    return Constants(**_kept()["constants"])


def receipt() -> Receipt:
    """Return the errors of the fitted constants."""
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
    """Return ``prior`` with ``products`` moved towards the value that reproduces the run.

    ``measured`` and the result of ``projected`` are rates in tokens/s. ``believed`` is the share of
    the way, on a logarithmic scale: 0 keeps ``prior``, 1 reproduces the run. If no value within the
    bounds reproduces the run, the nearest bound is the target.

    Raises:
        UsageError: no value comes near the run: the run was on other hardware.
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
