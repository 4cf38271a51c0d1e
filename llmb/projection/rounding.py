"""Printed figures as the ranges they stand for, and the figures of a row that contradict another.

A document that prints four rates of one run has measured one time: what its other figures follow
from. Where they are further apart than rounding, they were not all taken in one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from llmb.measure.step_figures import DEVICES_PER_NODE, TARGET_GLOBAL_BATCH
from llmb.workloads.published import Row, Table


@dataclass(frozen=True)
class Range:
    """Every value that rounds to a printed figure."""

    low: float
    high: float

    def times(self, other: Range | float) -> Range:
        """Return the range of products; all values are positive."""
        if isinstance(other, Range):
            return Range(self.low * other.low, self.high * other.high)
        return Range(self.low * other, self.high * other)

    def under(self, dividend: float) -> Range:
        """Return the range of ``dividend`` over a value."""
        return Range(dividend / self.high, dividend / self.low)

    def overlaps(self, other: Range) -> bool:
        """Tell whether some value is in both."""
        return self.low <= other.high and other.low <= self.high

    @property
    def middle(self) -> float:
        """The value in the middle."""
        return (self.low + self.high) / 2


def printed(text: str) -> Range:
    """Return what a figure printed as ``text`` stands for: half a unit of its last digit around.

    Zeros at the end of a whole number are taken as rounded away: 413000 is 412,500 to 413,500.
    """
    value = Decimal(text)
    parts = value.as_tuple()
    exponent = int(parts.exponent)
    if exponent >= 0:
        exponent = int(value.normalize().as_tuple().exponent)
    half = Decimal(5).scaleb(exponent - 1)
    return Range(float(value - half), float(value + half))


def contradictions(row: Row, table: Table, sequence_length: int) -> Iterator[str]:
    """Yield each pair of figures of a published row that are further apart than rounding."""
    values, titles = row.values, {column.key: column.title for column in table.columns}
    ranges = {name: printed(f"{value:.15g}") for name, value in values.items()}
    size = row.settings.get("world_size", table.world_size)
    world_size = size if isinstance(size, int) else None
    for (name, direct), (other, derived) in _pairs(ranges, sequence_length, world_size):
        if not direct.overlaps(derived):
            apart = abs(derived.middle / direct.middle - 1)
            yield (
                f"{titles[name]} {values[name]:,g} and {titles[other]} {values[other]:,g} "
                f"disagree: from the latter it is {derived.middle:,.5g}, {apart:.1%} apart, more "
                "than rounding"
            )


def _pairs(
    ranges: Mapping[str, Range], length: int, world_size: int | None
) -> Iterator[tuple[tuple[str, Range], tuple[str, Range]]]:
    """Yield (figure, what another one makes of it) of all figures that are there."""
    tokens, samples = ranges.get("tokens_per_second"), ranges.get("samples_per_second")
    steps, batch = ranges.get("iterations_per_second"), ranges.get("global_batch_size")
    each, hours = (
        ranges.get("tokens_per_second_per_device"),
        ranges.get("node_hours_per_100k_steps"),
    )
    if tokens and samples:
        yield ("tokens_per_second", tokens), ("samples_per_second", samples.times(length))
    if samples and steps and batch:
        yield ("samples_per_second", samples), ("iterations_per_second", steps.times(batch))
    if tokens and each and world_size:
        yield (
            ("tokens_per_second", tokens),
            ("tokens_per_second_per_device", each.times(world_size)),
        )
    if hours and world_size:
        nodes = -(-world_size // DEVICES_PER_NODE)
        work = nodes * 100_000 * TARGET_GLOBAL_BATCH / 3600
        name = "node_hours_per_100k_steps"
        if steps and batch:
            yield (name, hours), ("iterations_per_second", steps.times(batch).under(work))
        if samples:
            yield (name, hours), ("samples_per_second", samples.under(work))
