"""Ranges of printed (rounded) figures, and contradictions between the figures of one row.

A document may print four rates of one run, such as tokens/s, samples/s and iterations/s. All rates
follow from one measured time. If two rates differ by more than rounding, the row mixes several
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from llmb.measure.step_figures import DEVICES_PER_NODE, TARGET_GLOBAL_BATCH
from llmb.workloads.published import Row, Table


@dataclass(frozen=True)
class Range:
    """The range of values with the same printed figure. Example: 1.175 to 1.185 for "1.18"."""

    low: float
    high: float

    def times(self, other: Range | float) -> Range:
        """Return the range of products; all values are positive."""
        if isinstance(other, Range):
            return Range(self.low * other.low, self.high * other.high)
        return Range(self.low * other, self.high * other)

    def under(self, dividend: float) -> Range:
        """Return the range of ``dividend`` divided by a value of the range."""
        return Range(dividend / self.high, dividend / self.low)

    def overlaps(self, other: Range) -> bool:
        """Tell whether both ranges have a common value."""
        return self.low <= other.high and other.low <= self.high

    @property
    def middle(self) -> float:
        """The value in the middle."""
        return (self.low + self.high) / 2


def printed(text: str) -> Range:
    """Return the range of a printed figure: half a unit of the last digit on both sides.

    Zeros at the end of a whole number count as rounded. Example: 413000 is 412,500 to 413,500.
    """
    value = Decimal(text)
    parts = value.as_tuple()
    exponent = int(parts.exponent)
    if exponent >= 0:
        exponent = int(value.normalize().as_tuple().exponent)
    half = Decimal(5).scaleb(exponent - 1)
    return Range(float(value - half), float(value + half))


def contradictions(row: Row, table: Table, sequence_length: int) -> Iterator[str]:
    """Yield a sentence per pair of figures in a published row that differ by more than rounding."""
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
    """Yield pairs: a printed figure, and the same figure derived from another printed figure."""
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
