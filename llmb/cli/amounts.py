"""Amounts on the command line: numbers in a range, which click lets "nan" into."""

from __future__ import annotations

import math
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
