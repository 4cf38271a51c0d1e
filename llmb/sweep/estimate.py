"""How long a sweep still takes, by what its points took so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmb.records.run_record import RunRecord
from llmb.sweep.plan import Point


@dataclass(frozen=True)
class Took:
    """What one finished point took, in seconds."""

    point: Point
    batch_size: int
    seconds: float
    #: Of them, those in which workers did steps.
    stepping_s: float

    @classmethod
    def of(cls, point: Point, record: RunRecord, seconds: float) -> Took:
        """Return that of ``point``, whose run left ``record``."""
        stepping = sum(
            (each.stop_ns - each.start_ns) / 1e9 * (1 + each.warmup_steps / each.timed_steps)
            for each in record.timing.repeats
        )
        return cls(point, record.config.batch_size, seconds, min(stepping, seconds))


def left_s(coming: Sequence[Point], took: Sequence[Took]) -> float | None:
    """Return about how long the points in ``coming`` take, None where nothing is known yet."""
    return sum(_expected_s(point, took) for point in coming) if took else None


def _expected_s(point: Point, took: Sequence[Took]) -> float:
    """Return what ``point`` should take: a step grows with its batch, all else stays.

    By the nearest batch size of its own precision, or else of any, the latest first.
    """
    own = [each for each in took if each.point.precision == point.precision] or took
    if point.batch_size is None:
        return own[-1].seconds
    size = point.batch_size
    nearest = min(reversed(own), key=lambda each: abs(each.batch_size - size))
    return nearest.seconds + nearest.stepping_s * (size / nearest.batch_size - 1)
