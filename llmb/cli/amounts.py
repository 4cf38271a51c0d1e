"""Amounts on the command line: finite numbers (click accepts "nan" in a range), and times."""

from __future__ import annotations

import math
import re
from typing import Any

import click


class Amount(click.FloatRange):
    """A finite number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``value`` as a number, or fail."""
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{found} is no amount.", param, ctx)
        return found


_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0}


class Time(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A time with units, in seconds. Examples: ``90s``, ``30m``, ``1h30m``."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return ``value`` in seconds, or fail."""
        if isinstance(value, float):
            return value
        parts = re.findall(r"(\d{1,6})([hms])", value.strip().lower(), re.ASCII)
        if not parts or "".join(map("".join, parts)) != value.strip().lower():
            self.fail(f"{value!r} is no time: write 90s, 30m or 1h30m.", param, ctx)
        seconds = sum(int(number) * _UNITS_S[unit] for number, unit in parts)
        if not seconds:
            self.fail(f"{value!r} is no time at all: write 10m, for example.", param, ctx)
        return seconds


class Share(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A share from 0 to below 1. Examples: ``3%``, ``0.03``."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return ``value`` as a share, or fail."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(%?)", value.strip(), re.ASCII)
        share = float(match[1]) / (100 if match[2] else 1) if match else math.nan
        if not 0 <= share < 1:
            self.fail(f"{value!r} is no share below 1: write 3% or 0.03.", param, ctx)
        return share
